//! What `isopod run-workflow` and `isopod runs` can be told.

use std::path::PathBuf;

use clap::Subcommand;

use super::server::ServerArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct RunWorkflowArgs {
    /// The workflow, in YAML or JSON; `-` for standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print the id of the run and leave it running.
    #[arg(long, conflicts_with = "json")]
    pub(crate) detach: bool,
    /// Say yes to every node that wants to be approved.
    #[arg(long)]
    pub(crate) approve_all: bool,
    /// Put the files that the run has made into this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "detach")]
    pub(crate) artifacts: Option<PathBuf>,
    /// Print each event, and at the end the state, as one line of JSON.
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
    /// List runs, the newest first.
    Ls {
        /// Only those with this status.
        #[arg(long, value_name = "STATUS", value_parser = ["idle", "running", "completed", "failed", "awaitingapproval"])]
        status: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// Show the nodes of a run.
    Show {
        #[command(flatten)]
        run: RunArg,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// Show what happened in a run.
    Logs {
        #[command(flatten)]
        run: RunArg,
        /// Go on until the run ends.
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// End a run.
    Stop {
        #[command(flatten)]
        run: RunArg,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// Say yes, or no, to what waits in a run.
    Approve {
        #[command(flatten)]
        run: RunArg,
        /// Only this node.
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Say no, which ends the run.
        #[arg(long)]
        reject: bool,
        #[command(flatten)]
        common: RunsCommon,
    },
    /// List the files that a run has made, or fetch them.
    Artifacts {
        #[command(flatten)]
        run: RunArg,
        /// Fetch them into this directory.
        #[arg(long, short, value_name = "DIR")]
        output: Option<PathBuf>,
        #[command(flatten)]
        common: RunsCommon,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArg {
    /// The run's id.
    #[arg(value_name = "RUN_ID")]
    pub(crate) run: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunsCommon {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
