//! `isopod template tag`: names for builds.

use std::process::ExitCode;

use super::super::remote::client;
use super::advise;
use crate::args::TemplateTagArgs;

pub(super) async fn run(args: TemplateTagArgs) -> anyhow::Result<ExitCode> {
    let client = client(&args.server)?;
    if args.remove {
        client.remove_template_tags(&args.target, &args.tags).await.map_err(advise)?;
        return Ok(ExitCode::SUCCESS);
    }
    let build = client.assign_template_tags(&args.target, &args.tags).await.map_err(advise)?;
    say!("{} is now {}", crate::printable::printable(&build), args.tags.join(", "));
    Ok(ExitCode::SUCCESS)
}
