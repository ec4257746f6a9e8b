//! What `isopod run-workflow` and `isopod runs` can be told.

use std::path::PathBuf;

use clap::Subcommand;

use super::server::ServerArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct RunWorkflowArgs {
    /// Workflow file in YAML or JSON, or `-` for standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print the id of the run and leave it running in the background.
    #[arg(long, conflicts_with = "json")]
    pub(crate) detach: bool,
    /// Approve every node automatically.
    #[arg(long)]
    pub(crate) approve_all: bool,
    /// Download the files that the run created to this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "detach")]
    pub(crate) artifacts: Option<PathBuf>,
    /// Print each event, and finally the state, as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunsArgs {
    #[command(subcommand)]
    pub(crate) command: RunsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, newest first.
    Ls {
        /// List only runs with this status.
        #[arg(long, value_name = "STATUS", value_parser = ["idle", "running", "completed", "failed", "awaitingapproval"])]
        status: Option<String>,
        /// Maximum number to list.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// Show a run and its nodes.
    Show {
        #[command(flatten)]
        run: RunArg,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// Show the events of a run.
    Logs {
        #[command(flatten)]
        run: RunArg,
        /// Keep printing new events until the run ends.
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// Stop a run.
    Stop {
        #[command(flatten)]
        run: RunArg,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// Approve or reject waiting nodes of a run.
    Approve {
        #[command(flatten)]
        run: RunArg,
        /// Approve or reject only this node [default: all waiting nodes].
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Reject instead of approving, which ends the run.
        #[arg(long)]
        reject: bool,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// List or download the files that a run created.
    Artifacts {
        #[command(flatten)]
        run: RunArg,
        /// Download the files to this directory.
        #[arg(long, short, value_name = "DIR")]
        output: Option<PathBuf>,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// Copy a file that a run created into the library, for later runs.
    Promote {
        #[command(flatten)]
        run: RunArg,
        /// Name of the file, as `isopod runs artifacts` lists it.
        #[arg(value_name = "FILE")]
        file: String,
        #[command(flatten)]
        client: ClientArg,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// List the files of the library.
    Library {
        #[command(flatten)]
        client: ClientArg,
        #[command(flatten)]
        common: RunsCommon,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArg {
    /// Id of the run.
    #[arg(value_name = "RUN_ID")]
    pub(crate) run: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClientArg {
    /// Client of the team whose library it is.
    #[arg(long, value_name = "CLIENT", default_value = "public")]
    pub(crate) client: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunsCommon {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
