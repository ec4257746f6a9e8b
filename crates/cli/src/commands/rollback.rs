//! `isopod rollback`: puts a sandbox back to a snapshot of it.

use std::process::ExitCode;

use isopod_client::ApiError;
use serde_json::json;

use super::remote::{client, explain};
use crate::args::RollbackArgs;
use crate::failure::Hint;
use crate::say::print_json;

pub(super) async fn run(args: RollbackArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    let put_back = match args.filesystem_only {
        true => client.rollback_files(&args.sandbox, &args.snapshot).await,
        false => client.rollback(&args.sandbox, &args.snapshot).await,
    };
    put_back.map_err(advise)?;
    match args.json {
        true => print_json(&json!({ "sandboxID": args.sandbox, "snapshotID": args.snapshot })),
        false => say!("{}", args.sandbox),
    }
    Ok(ExitCode::SUCCESS)
}

/// What was not found may be the sandbox or the snapshot.
fn advise(error: ApiError) -> anyhow::Error {
    match error {
        ApiError::NotFound { message } => {
            Hint::new(message, "isopod ls shows the sandboxes that there are, isopod snapshot ls the snapshots")
        }
        other => explain(other),
    }
}
