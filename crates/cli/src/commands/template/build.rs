//! `isopod template build`: sends a directory to a server and shows how its build goes on.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use isopod_client::Client;
use isopod_client::guest::Upload;
use isopod_client::sandbox::{BegunBuild, BuildLogEntry, DockerfileBuild};
use isopod_node::list_recipes;
use serde_json::json;

use super::super::remote::client;
use super::super::show::printable;
use super::check::tell;
use super::project::{self, Project};
use super::{advise, pack};
use crate::args::TemplateBuildArgs;
use crate::failure::Hint;

/// As often as the official SDKs ask.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// The template that comes with Isopod, when one of those is meant and not a directory.
pub(super) fn recipe_of(args: &TemplateBuildArgs) -> Option<String> {
    let what = args.what.as_deref()?;
    let is_known = list_recipes().any(|made| made.name == what || made.aliases.contains(&what));
    let is_path = what.contains('/') || Path::new(what).is_dir();
    (is_known || !is_path).then(|| what.to_owned())
}

pub(super) async fn run(args: TemplateBuildArgs) -> anyhow::Result<ExitCode> {
    let dir = args.what.as_deref().map(Path::new);
    let project = match project::read(dir, args.dockerfile.as_deref())? {
        Ok(project) => project,
        Err(findings) => {
            tell(&findings, false)?;
            bail!("the template cannot be built as it is");
        }
    };
    let wanted = wanted(&args, &project)?;
    let client = client(&args.server)?;
    let context = pack::pack(&project.dir, &project.ignore, Some(&project.dockerfile))?;
    let context = Upload::reader(tokio::fs::File::from_std(context));
    let begun = client.build_dockerfile(&wanted, context).await.map_err(advise)?;
    let mut progress = Progress { steps: project.steps, is_terminal: std::io::stderr().is_terminal(), at: 0 };
    let ended = tokio::select! {
        ended = follow(&client, &begun, &mut progress) => ended?,
        _ = tokio::signal::ctrl_c() => {
            progress.end();
            client.cancel_build(&begun).await.map_err(advise)?;
            bail!("the build was cancelled");
        }
    };
    progress.end();
    report(&args, &wanted, &begun, ended)
}

fn wanted(args: &TemplateBuildArgs, project: &Project) -> anyhow::Result<DockerfileBuild> {
    let config = &project.config;
    let name = args.name.clone().or_else(|| config.template_name.clone()).or_else(|| config.template_id.clone());
    let name = name.ok_or_else(|| {
        Hint::new("the template has no name", "give --name NAME, or write template_name = \"NAME\" into e2b.toml")
    })?;
    Ok(DockerfileBuild {
        name,
        tags: args.tags.clone(),
        dockerfile: project.dockerfile.clone(),
        cpu_count: args.cpu_count.or(config.cpu_count),
        memory_mb: args.memory_mb.or(config.memory_mb),
        start_cmd: args.start_cmd.clone().or_else(|| config.start_cmd.clone()),
        ready_cmd: args.ready_cmd.clone().or_else(|| config.ready_cmd.clone()),
        args: args.build_arg.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect(),
        target: args.target.clone(),
        no_cache: args.no_cache,
        allow_host_base: args.allow_host_base,
    })
}

/// Shows what the build says until it ends. Why it failed, if it did.
async fn follow(client: &Client, begun: &BegunBuild, progress: &mut Progress) -> anyhow::Result<Option<String>> {
    let mut seen = 0;
    loop {
        let now = client.build_progress(begun, seen).await.map_err(advise)?;
        seen += now.log_entries.len();
        now.log_entries.iter().for_each(|entry| progress.show(entry));
        // At the end there may be more lines than one answer holds.
        if now.has_ended() && now.log_entries.is_empty() {
            return Ok((now.status == "error").then(|| now.reason.map(|reason| reason.message).unwrap_or_default()));
        }
        if !now.has_ended() {
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

fn report(
    args: &TemplateBuildArgs,
    wanted: &DockerfileBuild,
    begun: &BegunBuild,
    failed: Option<String>,
) -> anyhow::Result<ExitCode> {
    if let Some(reason) = failed {
        bail!("the build failed: {}", printable(&reason));
    }
    if args.json {
        crate::say::print_json(
            &json!({ "templateID": begun.template, "buildID": begun.build, "names": begun.names, "tags": begun.tags }),
        );
        return Ok(ExitCode::SUCCESS);
    }
    say!("✓ Template built successfully");
    say!("Template ID: {}", printable(&begun.template));
    say!("Build ID: {}", printable(&begun.build));
    say!("Name: {} (tags: {})", printable(&wanted.name), printable(&begun.tags.join(", ")));
    Ok(ExitCode::SUCCESS)
}

/// Lines as they come, and on a terminal a bar below them.
#[derive(Debug)]
struct Progress {
    steps: usize,
    is_terminal: bool,
    at: usize,
}

const WIDTH: usize = 24;

impl Progress {
    fn show(&mut self, entry: &BuildLogEntry) {
        let step = entry.step.as_deref().unwrap_or_default();
        if let Ok(number) = step.parse::<usize>() {
            self.at = number.min(self.steps);
        }
        let mut error = std::io::stderr();
        let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
        // Write errors are ignored.
        let _ = writeln!(error, "{clear}[{step}] {}", printable(&entry.message));
        if self.is_terminal && self.steps > 0 {
            let full = self.at * WIDTH / self.steps;
            let bar = format!("{}{}", "█".repeat(full), "░".repeat(WIDTH - full));
            let _ = write!(error, "{bar} {}/{}", self.at, self.steps);
        }
        let _ = error.flush();
    }

    fn end(&mut self) {
        if self.is_terminal && self.steps > 0 {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
