//! `isopod run`: a command or a script in a fresh sandbox, without a server.

mod copy;
mod notebook;
mod script;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use isopod_client::guest::{Guest, StartProcess};
use isopod_node::base::HostEnvironment;
use isopod_node::{Node, StateRoot, has_recipe};
use isopod_wire::node::{CreateError, Incarnation, NodeApi, SandboxSpec};
use isopod_wire::{KernelFeatures, Limits, NetworkPolicy, SandboxId};

use super::environment::environment;
use super::follow::{self, Report, terminal_size};
use super::node_config;
use super::template;
use crate::args::RunArgs;
use crate::failure::Hint;
use crate::progress_bar::Bar;
pub(super) use copy::Volume;

pub(super) async fn run(state_dir: &Path, args: RunArgs) -> anyhow::Result<ExitCode> {
    let volumes = args.volumes.iter().map(|text| text.parse()).collect::<anyhow::Result<Vec<Volume>>>()?;
    let spec = spec(&args)?;
    let timeout = timeout(&args)?;
    spec.limits.check()?;

    let mut config = node_config::for_command(state_dir)?;
    config.base.frozen = args.frozen;
    if args.no_host_settings {
        config.host_environment = HostEnvironment::NONE;
    }
    let node = Arc::new(Node::open(StateRoot::open(state_dir)?, config).await?);
    if let Some(reason) = node.no_disk_limit() {
        tell_once(state_dir, &reason);
    }
    let result = run_in(&node, spec, &args, &volumes, timeout).await;
    // Nothing else holds it for longer than it takes to notice that the work is done.
    if let Some(node) = Arc::into_inner(node) {
        node.close().await;
    }
    result
}

/// Says that nothing limits what a sandbox writes, the first time and when the reason is another one.
fn tell_once(state_dir: &Path, reason: &str) {
    let told = state_dir.join("no-disk-limit");
    if std::fs::read_to_string(&told).is_ok_and(|earlier| earlier == reason) {
        return;
    }
    let warning = "warning: sandboxes can fill the disk of this host, because what they write cannot be limited";
    // Write errors are ignored.
    let _ = writeln!(std::io::stderr(), "{warning}: {reason} (said once)");
    // It is said again where that cannot be written.
    let _ = std::fs::write(told, reason);
}

async fn run_in(
    node: &Arc<Node>,
    spec: SandboxSpec,
    args: &RunArgs,
    volumes: &[Volume],
    timeout: Option<Duration>,
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let sandbox = spec.sandbox.clone();
    ensure_template(node, &spec.template).await?;
    let incarnation = node.create(spec).await.map_err(explain)?;
    let guest = guest_of(node, &incarnation)?.with_user(&args.user);
    for volume in volumes {
        volume.copy_in(&guest).await?;
    }
    let ended = match &args.notebook {
        Some(path) => notebook::run(node, &incarnation, path, args, timeout).await,
        None => {
            let mut start = script::command_for(&guest, &args.command).await?;
            start.cwd.clone_from(&args.workdir);
            start.stdin = !args.tty;
            start.pty = args.tty.then(terminal_size);
            let report = Report::new(args.json, sandbox, started);
            follow::follow(&guest, start, timeout, args.tty, report).await
        }
    };
    for volume in volumes.iter().filter(|volume| !volume.read_only) {
        volume.copy_out(&guest).await?;
    }
    ended
}

/// Builds a template that was never used here, and says so: it takes some minutes.
pub(super) async fn ensure_template(node: &Node, name: &str) -> anyhow::Result<()> {
    if !has_recipe(name) {
        return Ok(());
    }
    let bar = Bar::default();
    let built = bar.while_working(node.build_template(name, false, |step| bar.show(&step))).await;
    drop(bar);
    built.map(drop).map_err(template::explain)
}

pub(super) fn guest_of(node: &Node, incarnation: &Incarnation) -> anyhow::Result<Guest> {
    let socket = node.guest_socket(incarnation).context("the sandbox is gone")?;
    Ok(Guest::over_unix(socket))
}

/// A sandbox of this template with everything else as usual.
pub(super) fn new_spec(template: &str) -> anyhow::Result<SandboxSpec> {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes)?;
    Ok(SandboxSpec {
        sandbox: SandboxId::from_random(bytes),
        template: template.to_owned(),
        limits: Limits::default(),
        network: NetworkPolicy::default(),
        env: BTreeMap::new(),
        access_token: None,
        labels: BTreeMap::new(),
        mounts: Vec::new(),
        features: KernelFeatures::default(),
        snapshot: None,
    })
}

fn spec(args: &RunArgs) -> anyhow::Result<SandboxSpec> {
    let usual = if args.notebook.is_some() { "code-interpreter-v1" } else { "base" };
    Ok(SandboxSpec {
        limits: Limits { cpu_millis: args.cpu, memory: args.memory, disk: args.disk, pids: args.pids },
        network: NetworkPolicy {
            deny_internet: args.no_network,
            allow_out: args.allow_out.clone(),
            deny_out: args.deny_out.clone(),
        },
        env: environment(&args.env)?,
        features: args.allow.iter().copied().collect(),
        snapshot: None,
        ..new_spec(args.template.as_deref().unwrap_or(usual))?
    })
}

fn timeout(args: &RunArgs) -> anyhow::Result<Option<Duration>> {
    let Some(seconds) = args.timeout else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
        _ => bail!("--timeout must be a positive number of seconds, not {seconds}"),
    }
}

pub(super) fn explain(error: CreateError) -> anyhow::Error {
    match error {
        CreateError::UnknownTemplate(name) => {
            Hint::new(format!("there is no template {name:?}"), "isopod template ls lists those that there are")
        }
        CreateError::Limits(reason) => Hint::new(reason, "isopod doctor says what this machine can limit"),
        other => other.into(),
    }
}

/// What runs a command through no shell.
fn plain(command: &[String]) -> StartProcess {
    let mut start = StartProcess::new(&command[0]);
    start.args = command[1..].to_vec();
    start
}
