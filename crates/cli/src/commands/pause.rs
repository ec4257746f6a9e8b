//! `isopod pause`: keeps sandboxes without running them.

use std::process::ExitCode;

use super::remote::{client, explain};
use crate::args::PauseArgs;

pub(super) async fn run(args: PauseArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    for sandbox in &args.sandboxes {
        match client.pause(sandbox, !args.filesystem_only).await.map_err(explain)? {
            true => say!("{sandbox}"),
            false => say_error!("isopod: {sandbox} was paused already"),
        }
    }
    Ok(ExitCode::SUCCESS)
}
