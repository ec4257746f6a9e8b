//! What `isopod storage` can be told. The names of the tunables are those of goofys.

use std::path::PathBuf;

use clap::Subcommand;
use isopod_wire::Bytes;

use crate::env_names;

/// Which workspace, for the server and for the verbs of `storage`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct StoreArgs {
    /// The workspace: `s3://BUCKET[/PREFIX]` or `dir:PATH` [default: a directory of Isopod's own].
    #[arg(long, env = env_names::STORAGE, value_name = "STORE")]
    pub(crate) storage: Option<String>,
    /// Where the workspace is seen, on the host and in sandboxes [default: /opt/sentient].
    #[arg(long, env = env_names::STORAGE_BASE_PATH, value_name = "DIR")]
    pub(crate) storage_base_path: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StorageArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(subcommand)]
    pub(crate) command: StorageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StorageCommand {
    /// Show the workspace on a directory of this host.
    Mount(MountArgs),
    /// Take such a mount away, also while it is in use.
    Umount {
        /// Which [default: the base path].
        path: Option<PathBuf>,
    },
    /// Say what is mounted and what the bucket does not have yet.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Look for what would keep the workspace from working: device, keys, bucket, region, path.
    Doctor(DoctorArgs),
    /// List a directory of the workspace.
    Ls {
        /// Such as `executions/e1` [default: the top].
        path: Option<String>,
    },
    /// Copy a file or a directory; what begins with `store:` is in the workspace.
    Cp { from: String, to: String },
    /// Say how much directories of the workspace hold.
    Du {
        /// [default: the top].
        path: Option<String>,
    },
    /// Give up local copies of what the bucket has, and parts of uploads that were cut off a day ago.
    Gc,
    /// Upload now what would be uploaded soon.
    Sync {
        /// Until the bucket has everything.
        #[arg(long)]
        wait: bool,
    },
    /// Upload what is left and end the daemon, unless a server, a sandbox or a program uses it.
    Stop {
        /// End it whoever uses it, without uploading first. What is not uploaded is uploaded after the next start.
        #[arg(long)]
        force: bool,
        /// Seconds to wait for uploads.
        #[arg(long, value_name = "SECONDS", default_value_t = 60, conflicts_with = "force")]
        timeout: u64,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct MountArgs {
    /// Where [default: the base path].
    pub(crate) path: Option<PathBuf>,
    /// Only this part, such as `executions/e1`.
    #[arg(long, value_name = "PART")]
    pub(crate) only: Option<String>,
    #[command(flatten)]
    pub(crate) tunables: TunableArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) tunables: TunableArgs,
}

/// They count when the daemon is started; one that runs keeps its own.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TunableArgs {
    /// The bucket's region [default: us-east-1].
    #[arg(long, env = env_names::AWS_REGION, value_name = "REGION")]
    pub(crate) region: Option<String>,
    /// Another server than Amazon's. Buckets stand in the path of its URLs.
    #[arg(long, env = env_names::AWS_ENDPOINT_URL, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Seconds that a size or time from the bucket is believed [default: 1].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) stat_cache_ttl: Option<f64>,
    /// Seconds that a name from the bucket is believed. Names and sizes are believed equally long: the shorter counts.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) type_cache_ttl: Option<f64>,
    /// Connections to the bucket that are kept open [default: 64].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_idle_handles: Option<usize>,
    /// Mode of directories that have none of their own [default: 0777].
    #[arg(long, value_name = "OCTAL", value_parser = octal)]
    pub(crate) dir_mode: Option<u32>,
    /// Mode of files that have none of their own [default: 0666].
    #[arg(long, value_name = "OCTAL", value_parser = octal)]
    pub(crate) file_mode: Option<u32>,
    /// What local copies may take [default: 10G].
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<Bytes>,
    /// Seconds without use, and with everything uploaded, after which the daemon ends by itself [default: 300].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_exit: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StoragedArgs {
    /// The daemon's directory.
    pub(crate) directory: PathBuf,
    /// Be the daemon, not its supervisor.
    #[arg(long)]
    pub(crate) worker: bool,
    /// Be the supervisor of a daemon that runs.
    #[arg(long, conflicts_with = "worker")]
    pub(crate) adopt: bool,
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("a mode has up to four octal digits, such as 0755".to_owned()),
    }
}
