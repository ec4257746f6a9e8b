//! `isopod cp`: files and directories into a sandbox or out of it, piece by piece however large they are.
//!
//! As with `cp -r`: a source goes into a destination that is a directory, and becomes the destination otherwise.

mod download;
mod place;
mod upload;

use std::process::ExitCode;

use anyhow::bail;
use isopod_client::SandboxId;
use isopod_client::guest::Guest;

use super::remote::{client, explain};
use crate::args::{CpArgs, ServerArgs};
use place::Place;

pub(super) async fn run(args: CpArgs) -> anyhow::Result<ExitCode> {
    match (Place::parse(&args.source)?, Place::parse(&args.destination)?) {
        (Place::Here(from), Place::Inside(sandbox, to)) => {
            upload::tree(&guest(&args.server, &sandbox, args.user).await?, &from, &to).await?;
        }
        (Place::Stream, Place::Inside(sandbox, to)) => {
            upload::stdin(&guest(&args.server, &sandbox, args.user).await?, &to).await?;
        }
        (Place::Inside(sandbox, from), Place::Here(to)) => {
            download::tree(&guest(&args.server, &sandbox, args.user).await?, &from, &to).await?;
        }
        (Place::Inside(sandbox, from), Place::Stream) => {
            download::stdout(&guest(&args.server, &sandbox, args.user).await?, &from).await?;
        }
        (Place::Inside(..), Place::Inside(..)) => bail!("from one sandbox to another: copy to this machine first"),
        _ => bail!("one side must be inside a sandbox, as ID:PATH"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn guest(server: &ServerArgs, sandbox: &SandboxId, user: Option<String>) -> anyhow::Result<Guest> {
    let sandbox = client(server)?.connect(sandbox, None).await.map_err(explain)?;
    let guest = sandbox.guest().clone();
    Ok(match user {
        Some(user) => guest.with_user(user),
        None => guest,
    })
}
