//! `isopod node`: the servers that share a database, and taking one of them out of use.

mod drain;
mod ls;

use std::process::ExitCode;

use isopod_client::ApiError;

use super::remote;
use crate::args::{NodeArgs, NodeCommand};
use crate::failure::Hint;

pub(super) async fn run(args: NodeArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        NodeCommand::Ls { json, server } => ls::ls(json, &server).await,
        NodeCommand::Drain(args) => drain::drain(args).await,
        NodeCommand::Uncordon(args) => {
            remote::client(&args.server)?.uncordon().await.map_err(explain)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What only an admin may do is refused with the way to become one.
fn explain(error: ApiError) -> anyhow::Error {
    match &error {
        ApiError::Server { code: 403, .. } => Hint::new(
            error.to_string(),
            "set E2B_API_KEY to an admin key: sudo isopod key create --local --scope admin",
        ),
        _ => remote::explain(error),
    }
}
