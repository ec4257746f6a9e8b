//! `isopod rollback`: puts a sandbox back to a snapshot of it.

use std::process::ExitCode;

use serde_json::json;

use super::remote::{client, explain};
use crate::args::RollbackArgs;
use crate::say::print_json;

pub(super) async fn run(args: RollbackArgs) -> anyhow::Result<ExitCode> {
    client(&args.server)?.rollback(&args.sandbox, &args.snapshot).await.map_err(explain)?;
    match args.json {
        true => print_json(&json!({ "sandboxID": args.sandbox, "snapshotID": args.snapshot })),
        false => say!("{}", args.sandbox),
    }
    Ok(ExitCode::SUCCESS)
}
