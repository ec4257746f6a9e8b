//! `isopod resume`: lets paused sandboxes run again.

use std::process::ExitCode;

use super::remote::{client, explain};
use crate::args::ResumeArgs;

pub(super) async fn run(args: ResumeArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    for sandbox in &args.sandboxes {
        client.resume(sandbox, Some(args.timeout)).await.map_err(explain)?;
        say!("{sandbox}");
    }
    Ok(ExitCode::SUCCESS)
}
