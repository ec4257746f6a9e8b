//! What the verbs about sandboxes of a server can be told.

use std::time::Duration;

use clap::ValueEnum;
use isopod_client::SandboxId;

use super::server::{Pair, ServerArgs, parse_seconds};

#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// The template to start from.
    #[arg(long, default_value = "base")]
    pub(crate) template: String,
    /// How long it lives, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "300")]
    pub(crate) timeout: Duration,
    /// A word to find it by, as KEY=VALUE.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// An environment variable, as NAME=VALUE or NAME to pass it on.
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// No outbound network.
    #[arg(long)]
    pub(crate) no_network: bool,
    /// Pause it when its time is up instead of ending it.
    #[arg(long)]
    pub(crate) auto_pause: bool,
    /// Print its id and leave it running, instead of a shell that ends it when it is left.
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
    /// Only those in this state.
    #[arg(long, value_enum)]
    pub(crate) state: Option<StateArg>,
    /// Only those with this word; may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// Print ids only.
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
    /// The sandbox.
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
    /// A terminal for the command.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The user that runs the command.
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// The directory in which the command starts.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// An environment variable, as NAME=VALUE or NAME to pass it on.
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// End it after so many seconds, with exit code 124.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<Duration>,
    /// Print one JSON object with output and exit code.
    #[arg(long, conflicts_with = "tty")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// The sandbox. A paused one is resumed.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// A command with its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    /// The sandbox. A paused one is resumed.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Whose shell.
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CpArgs {
    /// A path of this machine, ID:PATH for one inside a sandbox, or - for standard input.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Where it goes, in the same form, or - for standard output.
    #[arg(value_name = "DESTINATION")]
    pub(crate) destination: String,
    /// The user inside that reads or writes.
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LogsArgs {
    /// The sandbox, also one that has ended.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Go on as long as the sandbox exists.
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
    /// The sandbox.
    #[arg(value_name = "ID")]
    pub(crate) sandbox: SandboxId,
    /// Go on as long as the sandbox exists.
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
    /// The sandboxes.
    #[arg(value_name = "ID", required = true)]
    pub(crate) sandboxes: Vec<SandboxId>,
    /// Keep the files only: processes end.
    #[arg(long)]
    pub(crate) filesystem_only: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// The sandboxes.
    #[arg(value_name = "ID", required = true)]
    pub(crate) sandboxes: Vec<SandboxId>,
    /// How long they live from now, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "300")]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KillArgs {
    /// The sandboxes.
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) sandboxes: Vec<SandboxId>,
    /// All of the team's sandboxes.
    #[arg(long)]
    pub(crate) all: bool,
    /// With --all: only those in this state.
    #[arg(long, value_enum, requires = "all")]
    pub(crate) state: Option<StateArg>,
    /// With --all: only those with this word; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", requires = "all")]
    pub(crate) metadata: Vec<Pair>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
