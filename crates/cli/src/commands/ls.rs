//! `isopod ls`: the team's sandboxes.

use std::process::ExitCode;

use isopod_client::sandbox::{ListSandboxes, SandboxInfo, SandboxState};

use super::remote::{client, explain};
use super::show::{from_now, mebibytes, moment, print_table, printable, state};
use crate::args::{LsArgs, Pair, StateArg};
use crate::say::print_json_pretty;

pub(super) async fn run(args: LsArgs) -> anyhow::Result<ExitCode> {
    let which = which(args.state, &args.metadata);
    let sandboxes = client(&args.server)?.list(which).collect().await.map_err(explain)?;
    if args.json {
        print_json_pretty(&sandboxes);
    } else if args.quiet {
        sandboxes.iter().for_each(|sandbox| say!("{}", sandbox.id));
    } else {
        let headings = ["ID", "TEMPLATE", "STATE", "STARTED", "ENDS IN", "CPUS", "MEMORY", "METADATA"];
        print_table(&headings, &sandboxes.iter().map(row).collect::<Vec<_>>());
    }
    Ok(ExitCode::SUCCESS)
}

/// What `--state` and `--metadata` choose.
pub(super) fn which(state: Option<StateArg>, metadata: &[Pair]) -> ListSandboxes {
    let state = state.map(|state| match state {
        StateArg::Running => SandboxState::Running,
        StateArg::Paused => SandboxState::Paused,
    });
    let metadata = metadata.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect();
    ListSandboxes { state, metadata, ..ListSandboxes::default() }
}

fn row(sandbox: &SandboxInfo) -> Vec<String> {
    let metadata: Vec<String> = sandbox.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let ends = match sandbox.state {
        SandboxState::Running => from_now(sandbox.end_at),
        _ => "-".to_owned(),
    };
    vec![
        sandbox.id.to_string(),
        printable(sandbox.alias.as_deref().unwrap_or(&sandbox.template_id)),
        state(sandbox.state).to_owned(),
        moment(sandbox.started_at),
        ends,
        sandbox.cpu_count.to_string(),
        mebibytes(sandbox.memory_mb << 20),
        printable(&metadata.join(" ")),
    ]
}
