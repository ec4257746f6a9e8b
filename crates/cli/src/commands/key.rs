//! `isopod key`: API keys, through a server that knows one already, or directly in this machine's state directory.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_client::sandbox::ApiKeyInfo;
use isopod_control::{LocalKey, Store};
use serde::Serialize;
use serde_json::json;
use time::format_description::well_known::Rfc3339;

use super::DATABASE;
use super::remote::{client, explain};
use super::show::{print_table, printable};
use crate::args::{KeyArgs, KeyCommand, KeyCommon};
use crate::failure::Hint;
use crate::privilege::require_root;

pub(super) async fn run(state_dir: &Path, args: KeyArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        KeyCommand::Create { name, common } => create(state_dir, &name, &common).await,
        KeyCommand::List { common } => list(state_dir, &common).await,
        KeyCommand::Revoke { ids, common } => revoke(state_dir, &ids, &common).await,
    }
}

async fn create(state_dir: &Path, name: &str, common: &KeyCommon) -> anyhow::Result<ExitCode> {
    let (id, key) = match common.local {
        true => {
            let store = store(state_dir).await?;
            let (made, key) = store.create_local_key(name).await?;
            store.close().await;
            (made.id, key.0)
        }
        false => {
            let made = client(&common.server)?.create_key(name).await.map_err(explain)?;
            (made.info.id, made.key)
        }
    };
    // The one place where a key is printed.
    match common.json {
        true => say!("{}", json!({ "id": id, "name": name, "key": key })),
        false => say!("{key}"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(state_dir: &Path, common: &KeyCommon) -> anyhow::Result<ExitCode> {
    let keys: Vec<Shown> = match common.local {
        true => store(state_dir).await?.list_local_keys().await?.into_iter().map(Shown::from).collect(),
        false => client(&common.server)?.list_keys().await.map_err(explain)?.into_iter().map(Shown::from).collect(),
    };
    if common.json {
        say!("{}", serde_json::to_string_pretty(&keys)?);
    } else {
        print_table(&["ID", "NAME", "MADE", "LAST USED"], &keys.iter().map(Shown::row).collect::<Vec<_>>());
    }
    Ok(ExitCode::SUCCESS)
}

async fn revoke(state_dir: &Path, ids: &[String], common: &KeyCommon) -> anyhow::Result<ExitCode> {
    let mut missing = false;
    for id in ids {
        let found = match common.local {
            true => store(state_dir).await?.revoke_local_key(id).await?,
            false => client(&common.server)?.revoke_key(id).await.map_err(explain)?,
        };
        match found {
            true => say!("{id}"),
            false => eprintln!("isopod: there is no key {id:?}"),
        }
        missing |= !found;
    }
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The store of this machine. A server that runs on it sees changes at once.
async fn store(state_dir: &Path) -> anyhow::Result<Store> {
    require_root()?;
    let path = state_dir.join(DATABASE);
    if !path.exists() {
        let message = format!("no server has kept its state in {} yet", state_dir.display());
        return Err(Hint::new(message, "say where with --state-dir, or start one with: isopod serve"));
    }
    Store::open(path).await.context("could not open the database")
}

/// A key as it is shown, wherever it comes from.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    id: String,
    name: String,
    created_at: String,
    last_used: Option<String>,
}

impl Shown {
    fn row(&self) -> Vec<String> {
        let last_used = self.last_used.clone().unwrap_or_else(|| "never".to_owned());
        vec![self.id.clone(), printable(&self.name), self.created_at.clone(), last_used]
    }
}

impl From<LocalKey> for Shown {
    fn from(key: LocalKey) -> Self {
        Self { id: key.id, name: key.name, created_at: key.created_at, last_used: key.last_used }
    }
}

impl From<ApiKeyInfo> for Shown {
    fn from(key: ApiKeyInfo) -> Self {
        let text = |time: time::OffsetDateTime| time.format(&Rfc3339).unwrap_or_default();
        Self { id: key.id, name: key.name, created_at: text(key.created_at), last_used: key.last_used.map(text) }
    }
}
