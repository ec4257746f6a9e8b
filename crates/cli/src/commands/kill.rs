//! `isopod kill`: ends sandboxes.

use std::process::ExitCode;

use isopod_client::{Client, SandboxId};

use super::ls::which;
use super::remote::{client, explain};
use crate::args::KillArgs;

pub(super) async fn run(args: KillArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    let sandboxes = match args.all {
        true => all(&client, &args).await?,
        false => args.sandboxes,
    };
    let mut missing = false;
    for sandbox in sandboxes {
        match client.kill(&sandbox).await.map_err(explain)? {
            true => say!("{sandbox}"),
            // It may have ended by itself since it was listed.
            false if args.all => {}
            false => {
                missing = true;
                say_error!("isopod: there is no sandbox {sandbox}");
            }
        }
    }
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn all(client: &Client, args: &KillArgs) -> anyhow::Result<Vec<SandboxId>> {
    let listed = client.list(which(args.state, &args.metadata)).collect().await.map_err(explain)?;
    Ok(listed.into_iter().map(|sandbox| sandbox.id).collect())
}
