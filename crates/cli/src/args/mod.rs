//! What can be typed.

mod audit;
mod database;
mod image;
mod key;
mod repl;
mod run;
mod runs;
mod sandboxes;
mod serve;
mod server;
mod service;
mod storage;
mod template;
mod tls;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub(crate) use audit::{AuditArgs, AuditCommand};
pub(crate) use database::DatabaseArgs;
pub(crate) use image::{ImageArgs, ImageCommand, ImageExportArgs, ImageImportArgs, ImageListArgs, ImagePullArgs};
pub(crate) use key::{KeyArgs, KeyCommand, KeyCommon, ScopeArg};
pub(crate) use repl::ReplArgs;
pub(crate) use run::RunArgs;
pub(crate) use runs::{RunWorkflowArgs, RunsArgs, RunsCommand};
pub(crate) use sandboxes::{
    ConnectArgs, CpArgs, CreateArgs, ExecArgs, InfoArgs, KillArgs, LogsArgs, LsArgs, MetricsArgs, PauseArgs,
    ResumeArgs, StateArg,
};
pub(crate) use serve::{BackendKind, ServeArgs};
pub(crate) use server::{Pair, ServerArgs};
pub(crate) use service::{ServiceArgs, ServiceCommand, ServiceInstallArgs};
pub(crate) use storage::{DoctorArgs, MountArgs, StorageArgs, StorageCommand, StoragedArgs, StoreArgs, TunableArgs};
pub(crate) use template::{
    TemplateArgs, TemplateBuildArgs, TemplateCheckArgs, TemplateCommand, TemplateInitArgs, TemplateListArgs,
    TemplateRmArgs, TemplateShowArgs, TemplateTagArgs,
};
pub(crate) use tls::{TlsArgs, TlsCommand, TlsInitArgs};

use crate::env_names;

/// E2B on your own machine: sandboxes for AI agents.
#[derive(Debug, Parser)]
#[command(name = "isopod", version, disable_help_subcommand = true)]
pub(crate) struct Args {
    /// Where Isopod keeps its state [default: /var/lib/isopod].
    #[arg(long, global = true, env = env_names::STATE_DIR, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command or a script in a fresh sandbox.
    Run(RunArgs),
    /// Run a workflow on a server and follow it to its end.
    RunWorkflow(RunWorkflowArgs),
    /// List, show and stop runs of workflows.
    Runs(RunsArgs),
    /// Type code and see what it gives, in a fresh sandbox.
    Repl(ReplArgs),
    /// Serve the E2B API on one port.
    Serve(Box<ServeArgs>),
    /// Make a sandbox, and open a shell in it or leave it running.
    Create(CreateArgs),
    /// List sandboxes.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Show everything about a sandbox.
    Info(InfoArgs),
    /// Run a command in a sandbox.
    Exec(ExecArgs),
    /// Open a shell in a sandbox.
    Connect(ConnectArgs),
    /// Copy files and directories into a sandbox or out of it.
    Cp(CpArgs),
    /// Show what a sandbox said.
    Logs(LogsArgs),
    /// Show what a sandbox uses.
    Metrics(MetricsArgs),
    /// Pause sandboxes.
    Pause(PauseArgs),
    /// Let paused sandboxes run again.
    Resume(ResumeArgs),
    /// End sandboxes.
    Kill(KillArgs),
    /// Make, list and revoke API keys.
    Key(KeyArgs),
    /// Look at the record of what was done through the sandbox service.
    Audit(AuditArgs),
    /// Pull, import and export images.
    Image(ImageArgs),
    /// Build, list and change templates.
    Template(TemplateArgs),
    /// The workspace that sandboxes and this host share.
    Storage(StorageArgs),
    /// Certificates for https.
    Tls(TlsArgs),
    /// Run the server as a system service.
    Service(ServiceArgs),
    /// Say what this machine can and cannot do.
    Doctor(JsonArgs),
    /// Show what is kept on disk.
    Df(JsonArgs),
    /// Free what is not in use.
    Prune(PruneArgs),
    /// Remove everything that Isopod has made on this machine.
    Uninstall(UninstallArgs),
    /// Print a completion script for a shell.
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Print this reference as Markdown.
    #[command(hide = true)]
    HelpMarkdown,
    /// The process that starts sandboxes. Not for people.
    #[command(name = "__spawner", hide = true)]
    Spawner(SpawnerArgs),
    /// The process that serves the workspace. Not for people.
    #[command(name = "__storaged", hide = true)]
    Storaged(StoragedArgs),
    /// Removes what a killed process left. Not for people.
    #[command(name = "__sweep", hide = true)]
    Sweep,
}

#[derive(Debug, clap::Args)]
pub(crate) struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PruneArgs {
    /// Also the template that the next sandbox would be made of.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArgs {
    /// Do it without asking.
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SpawnerArgs {
    /// End all sandboxes when the process that started them is gone, by running the sweeper on this state directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) sweep_when_orphaned: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
