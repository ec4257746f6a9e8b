//! `docker build`: sends the directory to the server, for the build that the image is named after. The server has the
//! Dockerfile already, and builds it when `e2b template build` goes on.

use std::process::ExitCode;

use anyhow::Context;
use isopod_client::guest::Upload;
use isopod_client::sandbox::{BuildContext, RequestedBuild};

use super::image_name::requested_build;
use crate::args::DockerBuildArgs;
use crate::commands::remote::{client, explain};
use crate::commands::template::pack_directory;
use crate::failure::Hint;

pub(super) async fn run(args: DockerBuildArgs) -> anyhow::Result<ExitCode> {
    let build = requested_build(&args.tag).ok_or_else(|| {
        Hint::new(
            format!("{:?} does not name a build of a template", args.tag),
            "this is Isopod's stand-in for docker, which works for `e2b template build` alone",
        )
    })?;
    let wanted = BuildContext { args: values(&args.build_arg)?, no_cache: args.no_cache };
    let client = client(&args.server)?;
    let files = pack_directory(&args.path).with_context(|| format!("could not pack {}", args.path.display()))?;
    let files = Upload::reader(tokio::fs::File::from_std(files));
    send(&client, &build, &wanted, files).await?;
    say_error!("isopod: the server has the files of the directory, and builds the Dockerfile itself");
    Ok(ExitCode::SUCCESS)
}

async fn send(
    client: &isopod_client::Client,
    build: &RequestedBuild,
    wanted: &BuildContext,
    files: Upload,
) -> anyhow::Result<()> {
    match client.send_build_context(build, wanted, files).await {
        // The server's own words, which are not about sandboxes.
        Err(isopod_client::ApiError::NotFound { message }) => anyhow::bail!(message),
        sent => sent.map_err(explain),
    }
}

/// As Docker has it: an argument without a value has that of the variable, and is left out if there is none.
fn values(arguments: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut values = Vec::new();
    for argument in arguments {
        match argument.split_once('=') {
            Some(("", _)) => anyhow::bail!("{argument:?} is not NAME=VALUE"),
            Some((name, value)) => values.push((name.to_owned(), value.to_owned())),
            None => values.extend(std::env::var(argument).ok().map(|value| (argument.clone(), value))),
        }
    }
    Ok(values)
}
