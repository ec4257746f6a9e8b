//! What `isopod mcp` can be told.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::server::{ServerArgs, parse_seconds};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    pub(crate) command: Option<McpCommand>,
    #[command(flatten)]
    pub(crate) serve: McpServeArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct McpServeArgs {
    /// Use the sandbox of this named session by default; it outlasts the connection.
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Template of new sandboxes; run_code needs one with an interpreter.
    #[arg(long, default_value = "code-interpreter-v1")]
    pub(crate) template: String,
    /// Seconds that sandboxes live on if this process is killed; until then, their lifetime is extended.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "300")]
    pub(crate) timeout: Duration,
    /// Maximum number of sandboxes at the same time.
    #[arg(long, value_name = "N", default_value = "5")]
    pub(crate) max_sandboxes: usize,
    /// Maximum bytes of each output or file in a result; the middle of longer output is left out.
    #[arg(long, value_name = "BYTES", default_value = "32768", value_parser = clap::value_parser!(u32).range(1024..=16 << 20))]
    pub(crate) max_output: u32,
    /// Also let tools use the team's sandboxes that others created.
    #[arg(long)]
    pub(crate) all_sandboxes: bool,
    /// Directory whose files upload and download may use, without hidden ones [default: the working directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) local_root: Option<PathBuf>,
    /// Leave out the tools upload and download.
    #[arg(long, conflicts_with = "local_root")]
    pub(crate) no_local_files: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Add this MCP server to the configuration of a coding agent.
    Install(McpInstallArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct McpInstallArgs {
    /// Coding agent.
    #[arg(value_enum)]
    pub(crate) client: McpClient,
    /// Whether to configure it for the project in the working directory, or for the user [default: project for claude and
    /// vscode, user for codex and cursor].
    #[arg(long, value_enum)]
    pub(crate) scope: Option<McpScope>,
    /// Print the configuration instead of writing it.
    #[arg(long)]
    pub(crate) print: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Let the agent connect to /mcp of the server instead of starting `isopod mcp`.
    #[arg(long)]
    pub(crate) http: bool,
    /// URL to connect to, for example with ?session=NAME; implies --http [default: /mcp below the API's URL].
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum McpClient {
    Claude,
    Codex,
    Cursor,
    Vscode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum McpScope {
    Project,
    User,
}
