//! What the verbs about sandboxes of a server can be told.

use std::time::Duration;

use clap::ValueEnum;
use isopod_client::SandboxId;

use super::server::{Pair, ServerArgs, parse_seconds};

#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Template to start from.
    #[arg(long, default_value = "base")]
    pub(crate) template: String,
    /// Lifetime of the sandbox in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "300")]
    pub(crate) timeout: Duration,
    /// Metadata to find the sandbox by, as KEY=VALUE.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// Set an environment variable; NAME alone passes on its current value.
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Disable outbound network access.
    #[arg(long)]
    pub(crate) no_network: bool,
    /// Pause the sandbox when its time is up, instead of killing it.
    #[arg(long)]
    pub(crate) auto_pause: bool,
    /// Start from the files of a snapshot alone, without its processes and their memory.
    #[arg(long)]
    pub(crate) filesystem_only: bool,
    /// Print the id and leave the sandbox running, instead of opening a shell and killing the sandbox when the shell
    /// exits.
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Print JSON.
    #[arg(long, requires = "detach")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// List only sandboxes in this state.
    #[arg(long, value_enum)]
    pub(crate) state: Option<StateArg>,
    /// List only sandboxes with this metadata (repeatable).
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// Print only ids.
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateArg {
    Running,
    Paused,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    /// Id of the sandbox.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// Allocate a terminal for the command.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// User to run the command as.
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Working directory of the command.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Set an environment variable; NAME alone passes on its current value.
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Kill the command after this many seconds (exit code 124).
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Print one JSON object with the output and exit code.
    #[arg(long, conflicts_with = "tty")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Id of the sandbox; a paused sandbox is resumed.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Command to run, with its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    /// Id of the sandbox; a paused sandbox is resumed.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// User to run the shell as.
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CpArgs {
    /// Path on this machine, ID:PATH for a path in a sandbox, or - for standard input.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Destination in the same form, or - for standard output.
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: String,
    /// User in the sandbox to read or write the files as.
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LogsArgs {
    /// Id of the sandbox, which may have ended.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Keep printing as long as the sandbox exists.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print one JSON object per entry.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MetricsArgs {
    /// Id of the sandbox.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Keep printing as long as the sandbox exists.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "follow")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PauseArgs {
    /// Ids of the sandboxes.
    #[arg(value_name = "ID", required = true)]
    pub(crate) sandboxes: Vec<SandboxId>,
    /// Keep only the files; processes end.
    #[arg(long)]
    pub(crate) filesystem_only: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// Ids of the sandboxes.
    #[arg(value_name = "ID", required = true)]
    pub(crate) sandboxes: Vec<SandboxId>,
    /// Lifetime of the sandboxes from now, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "300")]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KillArgs {
    /// Ids of the sandboxes.
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) sandboxes: Vec<SandboxId>,
    /// Kill all sandboxes of the team.
    #[arg(long)]
    pub(crate) all: bool,
    /// With --all, kill only sandboxes in this state.
    #[arg(long, value_enum, requires = "all")]
    pub(crate) state: Option<StateArg>,
    /// With --all, kill only sandboxes with this metadata (repeatable).
    #[arg(long, value_name = "KEY=VALUE", requires = "all")]
    pub(crate) metadata: Vec<Pair>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
