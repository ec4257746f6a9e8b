//! What `isopod storage` can be told. The names of the tunables are those of goofys.

use std::path::PathBuf;

use clap::Subcommand;
use isopod_wire::Bytes;

use crate::env_names;

/// Which workspace, for the server and for the verbs of `storage`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct StoreArgs {
    /// Where to store the workspace: `s3://BUCKET[/PREFIX]` or `dir:PATH` [default: a directory in the state
    /// directory].
    #[arg(long, env = env_names::STORAGE, value_name = "STORE")]
    pub(crate) storage: Option<String>,
    /// Path of the workspace on the host and in sandboxes [default: /opt/sentient].
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
    /// Mount the workspace on a directory of this host.
    Mount(MountArgs),
    /// Unmount the workspace, even while it is in use.
    Umount {
        /// Mount point [default: the base path].
        path: Option<PathBuf>,
    },
    /// Show mounts and changes that are not uploaded yet.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check that the workspace can work: device, keys, bucket, region and path.
    Doctor(DoctorArgs),
    /// List a directory of the workspace.
    Ls {
        /// Directory, such as `executions/e1` [default: the top level].
        path: Option<String>,
    },
    /// Copy a file or directory; paths in the workspace start with `store:`.
    Cp { from: String, to: String },
    /// Show the size of directories in the workspace.
    Du {
        /// Directory [default: the top level].
        path: Option<String>,
    },
    /// Delete local copies of uploaded files, and parts of uploads that were cut off over a day ago.
    Gc,
    /// Show what is not uploaded yet, or upload it now with --wait.
    Sync {
        /// Upload now, and wait until everything is uploaded.
        #[arg(long)]
        wait: bool,
    },
    /// Upload what is left and stop the storage daemon, unless a server, sandbox or program uses it.
    Stop {
        /// Stop the daemon even if it is in use, without uploading first; the rest is uploaded after the next start.
        #[arg(long)]
        force: bool,
        /// Seconds to wait for uploads.
        #[arg(long, value_name = "SECONDS", default_value_t = 60, conflicts_with = "force")]
        timeout: u64,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct MountArgs {
    /// Mount point [default: the base path].
    pub(crate) path: Option<PathBuf>,
    /// Mount only this part, such as `executions/e1`.
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
    /// Region of the bucket [default: us-east-1].
    #[arg(long, env = env_names::AWS_REGION, value_name = "REGION")]
    pub(crate) region: Option<String>,
    /// URL of an S3 server other than Amazon's; it must accept path-style URLs.
    #[arg(long, env = env_names::AWS_ENDPOINT_URL, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Seconds to cache file sizes and times from the bucket [default: 1].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) stat_cache_ttl: Option<f64>,
    /// Seconds to cache names from the bucket; the smaller of this and --stat-cache-ttl applies to both.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) type_cache_ttl: Option<f64>,
    /// Maximum number of idle connections to the bucket [default: 64].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_idle_handles: Option<usize>,
    /// Mode of directories without a mode of their own [default: 0777].
    #[arg(long, value_name = "OCTAL", value_parser = octal)]
    pub(crate) dir_mode: Option<u32>,
    /// Mode of files without a mode of their own [default: 0666].
    #[arg(long, value_name = "OCTAL", value_parser = octal)]
    pub(crate) file_mode: Option<u32>,
    /// Maximum size of local copies [default: 10G].
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<Bytes>,
    /// Stop the daemon after this many seconds without use, once everything is uploaded [default: 300].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_exit: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StoragedArgs {
    /// Directory of the daemon.
    pub(crate) directory: PathBuf,
    /// Run as the daemon, not as its supervisor.
    #[arg(long)]
    pub(crate) worker: bool,
    /// Run as the supervisor of a daemon that is already running.
    #[arg(long, conflicts_with = "worker")]
    pub(crate) adopt: bool,
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("a mode has up to four octal digits, such as 0755".to_owned()),
    }
}
