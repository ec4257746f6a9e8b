//! What can be typed.

mod assemble_image;
mod audit;
mod backup;
mod cluster;
mod database;
mod docker;
mod env;
mod image;
mod key;
mod mcp;
mod node;
mod quota;
mod repl;
mod run;
mod runs;
mod sandboxes;
mod serve;
mod server;
mod service;
mod snapshot;
mod storage;
mod template;
mod tls;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

pub(crate) use assemble_image::AssembleImageArgs;
pub(crate) use audit::{AuditArgs, AuditCommand};
pub(crate) use backup::BackupArgs;
pub(crate) use cluster::{ClusterArgs, ClusterCommand, ClusterDatabaseArgs};
pub(crate) use database::DatabaseArgs;
pub(crate) use docker::{DockerArgs, DockerBuildArgs, DockerCommand};
pub(crate) use env::{EnvArgs, EnvCommandArgs, EnvShell};
pub(crate) use image::{ImageArgs, ImageCommand, ImageExportArgs, ImageImportArgs, ImageListArgs, ImagePullArgs};
pub(crate) use key::{KeyArgs, KeyCommand, KeyCommon, ScopeArg};
pub(crate) use mcp::{McpArgs, McpClient, McpCommand, McpInstallArgs, McpScope, McpServeArgs};
pub(crate) use node::{DrainArgs, NodeArgs, NodeCommand};
pub(crate) use quota::{LimitArgs, QuotaArgs, QuotaCommand};
pub(crate) use repl::ReplArgs;
pub(crate) use run::RunArgs;
pub(crate) use runs::{RunWorkflowArgs, RunsArgs, RunsCommand};
pub(crate) use sandboxes::{
    ConnectArgs, CpArgs, CreateArgs, ExecArgs, InfoArgs, KillArgs, LogsArgs, LsArgs, MetricsArgs, PauseArgs,
    ResumeArgs, StateArg,
};
pub(crate) use serve::{BackendKind, ServeArgs, Switch};
pub(crate) use server::{Pair, ServerArgs};
pub(crate) use service::{ServiceArgs, ServiceCommand, ServiceInstallArgs};
pub(crate) use snapshot::{
    ForkArgs, RollbackArgs, SnapshotArgs, SnapshotCommand, SnapshotCreateArgs, SnapshotInspectArgs, SnapshotListArgs,
    SnapshotRmArgs,
};
pub(crate) use storage::{DoctorArgs, MountArgs, StorageArgs, StorageCommand, StoragedArgs, StoreArgs, TunableArgs};
pub(crate) use template::{
    TemplateArgs, TemplateBuildArgs, TemplateCheckArgs, TemplateCommand, TemplateExportArgs, TemplateInitArgs,
    TemplateListArgs, TemplateRmArgs, TemplateShowArgs, TemplateTagArgs,
};
pub(crate) use tls::{TlsArgs, TlsCommand, TlsInitArgs};

use crate::env_names;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
    Auto,
}

/// E2B on your own machine: sandboxes for AI agents.
#[derive(Debug, Parser)]
#[command(name = "isopod", version, disable_help_subcommand = true)]
pub(crate) struct Args {
    /// State directory [default: /var/lib/isopod].
    #[arg(long, global = true, env = env_names::STATE_DIR, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Format of log lines on standard error; `auto` is text on a terminal and JSON elsewhere.
    #[arg(long, global = true, env = env_names::LOG_FORMAT, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command or script in a fresh sandbox.
    Run(RunArgs),
    /// Run a workflow on a server and follow it until it ends.
    RunWorkflow(RunWorkflowArgs),
    /// List, inspect and control workflow runs.
    Runs(RunsArgs),
    /// Start an interactive session in a fresh sandbox.
    Repl(ReplArgs),
    /// Serve the E2B API on a single port.
    Serve(Box<ServeArgs>),
    /// Print the variables that E2B programs need, or run a program so that it finds this server whatever its SDK.
    Env(Box<EnvArgs>),
    /// Create a sandbox, and open a shell in it or leave it running.
    Create(CreateArgs),
    /// List sandboxes.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Show details of a sandbox.
    Info(InfoArgs),
    /// Run a command in a sandbox.
    Exec(ExecArgs),
    /// Open a shell in a sandbox.
    Connect(ConnectArgs),
    /// Copy files and directories to or from a sandbox.
    Cp(CpArgs),
    /// Show the logs of a sandbox.
    Logs(LogsArgs),
    /// Show the resource usage of a sandbox.
    Metrics(MetricsArgs),
    /// Pause sandboxes.
    Pause(PauseArgs),
    /// Resume paused sandboxes.
    Resume(ResumeArgs),
    /// Take, list and delete snapshots of sandboxes.
    Snapshot(SnapshotArgs),
    /// Create copies of a running sandbox, with its processes and files.
    Fork(ForkArgs),
    /// Put a running sandbox back to a snapshot of it.
    Rollback(RollbackArgs),
    /// Kill sandboxes.
    Kill(KillArgs),
    /// Create, list, rotate and revoke API keys.
    Key(KeyArgs),
    /// Show and set the limits of teams.
    Quota(QuotaArgs),
    /// List the servers that share a database, and take one out of use for maintenance of its host.
    Node(NodeArgs),
    /// Make several servers answer for each other's sandboxes.
    Cluster(ClusterArgs),
    /// Show, export and verify the audit log of the sandbox service.
    Audit(AuditArgs),
    /// Serve sandboxes to a coding agent as tools, over standard input and output (MCP).
    Mcp(Box<McpArgs>),
    /// Manage images in the local store.
    Image(ImageArgs),
    /// Build and manage templates.
    Template(TemplateArgs),
    /// Manage the workspace that sandboxes and this host share.
    Storage(StorageArgs),
    /// Create and print certificates for HTTPS.
    Tls(TlsArgs),
    /// Run the server as a systemd service.
    Service(ServiceArgs),
    /// Check what this machine can and cannot do.
    Doctor(JsonArgs),
    /// Install optional packages of this machine that are missing, such as btrfs-progs for disk limits.
    Setup(SetupArgs),
    /// Show disk usage.
    Df(JsonArgs),
    /// Remove abandoned sandboxes and unused templates.
    Prune(PruneArgs),
    /// Write the records, keys, certificates, templates and run files of the state directory to one file. Servers go on.
    Backup(BackupArgs),
    /// Create the state directory from a file of `isopod backup`.
    Restore(BackupArgs),
    /// Kill all sandboxes and remove Isopod's state from this machine.
    Uninstall(UninstallArgs),
    /// Print a shell completion script.
    Completions {
        /// Shell to print the script for.
        shell: clap_complete::Shell,
    },
    /// Print the command-line reference as Markdown.
    #[command(hide = true)]
    HelpMarkdown,
    /// Write the man pages.
    #[command(hide = true)]
    HelpMan {
        /// Directory for the pages.
        directory: PathBuf,
    },
    /// Assemble an OCI image from layers.
    #[command(hide = true)]
    AssembleImage(AssembleImageArgs),
    /// Process that starts sandboxes (internal).
    #[command(name = "__spawner", hide = true)]
    Spawner(SpawnerArgs),
    /// Process that runs a command with names and certificates of its own (internal).
    #[command(name = "__env", hide = true)]
    EnvEnter(EnvCommandArgs),
    /// Process that becomes that command (internal).
    #[command(name = "__env-exec", hide = true)]
    EnvExec(EnvCommandArgs),
    /// Process that serves the workspace (internal).
    #[command(name = "__storaged", hide = true)]
    Storaged(StoragedArgs),
    /// Remove what a killed process left behind (internal).
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
    /// Also remove unused templates that new sandboxes would start from.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SetupArgs {
    /// Do not ask for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArgs {
    /// Do not ask for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SpawnerArgs {
    /// Kill all sandboxes when the process that started them is gone, by running the sweeper on this state directory.
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
