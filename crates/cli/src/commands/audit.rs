//! `isopod audit`: the record of every operation of the service, read from this machine's state directory.

use std::path::Path;
use std::process::ExitCode;

use isopod_store::Store;
use isopod_store::service::{AuditLine, Verified};
use serde_json::json;

use super::database;
use super::show::{print_table, printable};
use crate::args::{AuditArgs, AuditCommand};
use crate::say::print_json;

const PAGE: u32 = 1000;

pub(super) async fn run(state_dir: &Path, args: AuditArgs) -> anyhow::Result<ExitCode> {
    let store = database::open(state_dir, &args.database).await?;
    let done = match args.command {
        AuditCommand::Ls { limit, json } => list(&store, limit, json).await,
        AuditCommand::Export => export(&store).await,
        AuditCommand::Verify { contains, json } => verify(&store, contains.as_deref(), json).await,
    };
    store.close().await;
    done
}

async fn list(store: &Store, limit: u32, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut lines = store.last_audit_lines(limit).await?;
    lines.reverse();
    if as_json {
        print_lines(&lines);
    } else {
        let rows: Vec<Vec<String>> =
            lines.iter().map(|line| line.cells().map(|cell| printable(&cell)).to_vec()).collect();
        print_table(&["NUMBER", "TIME", "WHO", "WHAT", "SANDBOX", "OUTCOME"], &rows);
    }
    Ok(ExitCode::SUCCESS)
}

async fn export(store: &Store) -> anyhow::Result<ExitCode> {
    for chain in store.audit_chains().await? {
        let mut after = 0;
        loop {
            let page = store.audit_page(&chain.server, after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = last.number();
            print_lines(&page);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_lines(lines: &[AuditLine]) {
    for line in lines {
        print_json(&json!(line));
    }
}

async fn verify(store: &Store, contains: Option<&str>, as_json: bool) -> anyhow::Result<ExitCode> {
    let (mut is_good, mut found) = (true, contains.is_none());
    for chain in store.audit_chains().await? {
        let verified = store.verify_audit(&chain.server).await?;
        is_good &= verified.broken_at.is_none();
        if let Some(hash) = contains.filter(|_| !found) {
            found = has_hash(store, &chain.server, hash).await?;
        }
        match as_json {
            true => print_json(&json!(verified)),
            false => say!("{}", sentence(&verified)),
        }
    }
    if !found {
        say_error!("isopod: the hash is in no chain: lines were cut off or replaced");
    }
    Ok(if is_good && found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn has_hash(store: &Store, server: &str, hash: &str) -> anyhow::Result<bool> {
    let mut after = 0;
    loop {
        let page = store.audit_page(server, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(false) };
        after = last.number();
        if page.iter().any(|line| line.hash.eq_ignore_ascii_case(hash)) {
            return Ok(true);
        }
    }
}

fn sentence(verified: &Verified) -> String {
    let Verified { server, lines, head, broken_at } = verified;
    match broken_at {
        None => format!("server {server}: {lines} lines, unbroken, head {head}"),
        Some(number) => format!("server {server}: BROKEN at line {number}; {lines} lines before it are good"),
    }
}
