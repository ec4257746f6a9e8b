//! `isopod node drain`: takes a server out of use for maintenance of its host.

use std::process::ExitCode;

use isopod_client::sandbox::Drained;

use super::explain;
use crate::args::DrainArgs;
use crate::commands::remote;
use crate::commands::show::print_table;
use crate::say::print_json_pretty;

/// Fails if a sandbox could not be saved, for a script that goes on with a shutdown.
pub(super) async fn drain(args: DrainArgs) -> anyhow::Result<ExitCode> {
    let drained = remote::client(&args.server)?.drain(args.deadline).await.map_err(explain)?;
    match args.json {
        true => print_json_pretty(&drained),
        false => show(&drained),
    }
    Ok(if drained.not_saved.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(drained: &Drained) {
    let row = |id: &str, state: &str, reason: &str| vec![id.to_owned(), state.to_owned(), reason.to_owned()];
    let running = drained.running.iter().map(|id| row(id.as_str(), "running", ""));
    let saved = drained.saved.iter().map(|id| row(id.as_str(), "saved", ""));
    let not_saved = drained.not_saved.iter().map(|one| row(one.sandbox.as_str(), "not saved", &one.reason));
    let rows: Vec<Vec<String>> = running.chain(saved).chain(not_saved).collect();
    print_table(&["SANDBOX", "STATE", "REASON"], &rows);
}
