//! `isopod mcp`: an MCP server on standard input and output, for one coding agent.

mod install;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use isopod_mcp::{LocalFiles, McpConfig, RootError, Transfers, serve};
use tokio::signal::unix::{SignalKind, signal};

use super::remote::{LOCAL, client};
use crate::args::{McpArgs, McpCommand, McpServeArgs, ServerArgs};
use crate::failure::Hint;

pub(super) async fn run(args: McpArgs) -> anyhow::Result<ExitCode> {
    if let Some(McpCommand::Install(args)) = args.command {
        return install::run(&args);
    }
    let config = config(args.serve)?;
    serve(config, tokio::io::stdin(), tokio::io::stdout(), asked_to_end()?)
        .await
        .context("could not serve the MCP client")?;
    Ok(ExitCode::SUCCESS)
}

fn config(args: McpServeArgs) -> anyhow::Result<McpConfig> {
    let transfers = match args.no_local_files {
        true => Transfers::Off,
        false => local_files(args.local_root.as_deref())?,
    };
    Ok(McpConfig {
        client: client(&args.server)?,
        preview_scheme: preview_scheme(&args.server),
        template: args.template,
        session: args.session,
        timeout: args.timeout,
        max_sandboxes: args.max_sandboxes,
        max_output: args.max_output as usize,
        all_sandboxes: args.all_sandboxes,
        transfers,
    })
}

/// Some editors start servers in `/`. Then there are no local files, unless the user names a directory.
fn local_files(root: Option<&Path>) -> anyhow::Result<Transfers> {
    match LocalFiles::below(root.unwrap_or(Path::new("."))) {
        Ok(files) => Ok(Transfers::LocalFiles(files)),
        Err(RootError::Everything) if root.is_none() => Ok(Transfers::Off),
        Err(error) => {
            Err(Hint::because("uploads and downloads need a directory", error, "name another one with --local-root"))
        }
    }
}

/// Ports are served like the API.
fn preview_scheme(args: &ServerArgs) -> &'static str {
    let given = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
    let url = given(&args.sandbox_url).or_else(|| given(&args.api_url));
    let default = if given(&args.domain).is_some() { "https://" } else { LOCAL };
    if url.as_deref().unwrap_or(default).starts_with("https") { "https" } else { "http" }
}

/// Clients end their servers with SIGTERM if closing the input doesn't do it.
fn asked_to_end() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let listen = |kind| signal(kind).context("could not listen for signals");
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let mut hang_up = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previews_are_served_like_the_api() {
        let args = |url: &str, domain: &str| ServerArgs {
            api_key: None,
            api_url: Some(url.to_owned()),
            sandbox_url: None,
            domain: Some(domain.to_owned()),
            ca_file: None,
        };
        assert_eq!(preview_scheme(&args("", "")), "http");
        assert_eq!(preview_scheme(&args("https://api.box.example", "")), "https");
        assert_eq!(preview_scheme(&args("", "box.example")), "https");
        assert_eq!(preview_scheme(&args("http://127.0.0.1:3000", "box.example")), "http");
    }
}
