//! One file per verb.

mod assemble_image;
mod audit;
mod backup;
mod cluster;
mod completions;
mod connect;
mod cp;
mod create;
mod database;
mod df;
pub(crate) mod docker;
mod doctor;
pub(crate) mod env;
mod environment;
mod exec;
mod follow;
mod fork;
mod help_man;
mod help_markdown;
mod image;
mod info;
mod interpreter;
mod keep_alive;
mod key;
mod kill;
mod logs;
mod ls;
mod mcp;
mod metrics;
mod node;
mod node_config;
mod pause;
mod prune;
mod quota;
mod remote;
mod repl;
mod restore;
mod resume;
mod rollback;
mod run;
mod run_workflow;
mod running;
mod runs;
mod serve;
mod service;
mod setup;
mod show;
mod snapshot;
pub(crate) mod spawner;
mod storage;
mod sweep;
mod template;
mod tls;
mod transfer;
mod uninstall;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use isopod_otlp::OtlpExporter;

use crate::args::{Args, Command};
use crate::privilege::require_root;

/// The database of a server, in its state directory.
const DATABASE: &str = "isopod.db";

/// What `isopod env` goes by, in the state directory.
const ENV_DIRECTORY: &str = "env";

/// Where state is kept unless something else is said.
fn default_state_dir() -> PathBuf {
    PathBuf::from("/var/lib/isopod")
}

/// Does what was typed.
pub(crate) fn dispatch(args: Args, traces: Option<OtlpExporter>) -> anyhow::Result<ExitCode> {
    let state_dir = args.state_dir.clone().unwrap_or_else(default_state_dir);
    match args.command {
        Command::Completions { shell } => completions::run(shell),
        Command::HelpMan { directory } => help_man::run(&directory),
        Command::HelpMarkdown => help_markdown::run(),
        Command::AssembleImage(image) => assemble_image::run(&image),
        Command::Doctor(doctor) => block_on(doctor::run(&state_dir, &doctor)),
        Command::Setup(setup) => setup::run(&setup),
        Command::Tls(tls) => tls::run(&state_dir, &tls),
        Command::Service(service) => service::run(args.state_dir.as_deref(), &service),
        Command::Env(env) => block_on(env::run(&state_dir, *env)),
        Command::Create(create) => block_on(create::run(create)),
        Command::Ls(ls) => block_on(ls::run(ls)),
        Command::Info(info) => block_on(info::run(info)),
        Command::Exec(exec) => block_on(exec::run(exec)),
        Command::Connect(connect) => block_on(connect::run(connect)),
        Command::Cp(cp) => block_on(cp::run(cp)),
        Command::Logs(logs) => block_on(logs::run(logs)),
        Command::Metrics(metrics) => block_on(metrics::run(metrics)),
        Command::Pause(pause) => block_on(pause::run(pause)),
        Command::Resume(resume) => block_on(resume::run(resume)),
        Command::Snapshot(snapshot) => block_on(snapshot::run(snapshot)),
        Command::Fork(fork) => block_on(fork::run(fork)),
        Command::Rollback(rollback) => block_on(rollback::run(rollback)),
        Command::Kill(kill) => block_on(kill::run(kill)),
        Command::Template(template) => block_on(template::run(&state_dir, template)),
        Command::RunWorkflow(flow) => block_on(run_workflow::run(flow)),
        Command::Runs(runs) => block_on(runs::run(runs)),
        Command::Key(key) => block_on(key::run(&state_dir, key)),
        Command::Quota(quota) => block_on(quota::run(quota)),
        Command::Mcp(mcp) => block_on(mcp::run(*mcp)),
        Command::Node(node) => block_on(node::run(node)),
        Command::Cluster(cluster) => block_on(cluster::run(&state_dir, cluster)),
        Command::Audit(audit) => block_on(audit::run(&state_dir, audit)),
        Command::Spawner(_) | Command::EnvEnter(_) | Command::EnvExec(_) => Ok(ExitCode::FAILURE),
        command => {
            require_root()?;
            match command {
                Command::Run(run) => block_on(run::run(&state_dir, run)),
                Command::Repl(repl) => block_on(repl::run(&state_dir, repl)),
                Command::Serve(serve) => block_on(serve::run(args.state_dir, *serve, traces)),
                Command::Storage(storage) => storage::run(&state_dir, &storage),
                Command::Storaged(storaged) => storage::daemon::run(&storaged),
                Command::Image(image) => block_on(image::run(&state_dir, image)),
                Command::Backup(backup) => block_on(backup::run(&state_dir, &backup)),
                Command::Restore(backup) => restore::run(&state_dir, &backup),
                Command::Df(df) => df::run(&state_dir, &df),
                Command::Prune(prune) => prune::run(&state_dir, &prune),
                Command::Uninstall(uninstall) => uninstall::run(&state_dir, &uninstall),
                _ => sweep::run(&state_dir),
            }
        }
    }
}

fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("could not start")?;
    let result = runtime.block_on(work);
    // A thread that waits for a terminal's input would otherwise keep the process from ending.
    runtime.shutdown_background();
    result
}
