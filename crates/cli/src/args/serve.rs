//! The options of `isopod serve`. Precedence: flags, environment, file, defaults. The file comes later, so nothing has a
//! default here.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{DatabaseArgs, StoreArgs};
use crate::env_names;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct ServeArgs {
    /// TOML file with settings; flags and environment variables override it.
    #[arg(long, env = env_names::CONFIG, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address to listen on [default: 127.0.0.1:3000].
    #[arg(long, env = env_names::LISTEN, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// Domain of sandbox host names, {port}-{id}.DOMAIN [default: isopod.localhost with the port].
    #[arg(long, env = env_names::DOMAIN, value_name = "DOMAIN")]
    pub(crate) domain: Option<String>,
    /// Other domains that programs run by `isopod env` know this server by, or `none`; comma-separated
    /// [default: e2b.app].
    #[arg(long, env = env_names::ENV_DOMAINS, value_name = "DOMAIN", value_delimiter = ',')]
    pub(crate) env_domains: Option<Vec<String>>,
    /// First API key [default: a random one].
    #[arg(long, env = env_names::API_KEY, hide_env_values = true, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Name of this server if several share a database [default: the host name].
    #[arg(long, env = env_names::NODE_NAME, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// Address to listen on for other servers of the cluster; always encrypted, and only for them.
    #[arg(long, env = env_names::PEER_LISTEN, value_name = "ADDRESS")]
    pub(crate) peer_listen: Option<SocketAddr>,
    /// Address by which other servers reach --peer-listen, HOST:PORT [default: the same].
    #[arg(long, env = env_names::PEER_ADDRESS, value_name = "ADDRESS")]
    pub(crate) peer_address: Option<String>,
    /// Join the cluster of this token at this server, TOKEN@HOST:PORT; without effect once joined.
    #[arg(long, env = env_names::JOIN, hide_env_values = true, value_name = "TOKEN")]
    pub(crate) join: Option<String>,
    /// File that contains TOKEN@HOST:PORT, in place of --join.
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    pub(crate) join_file: Option<PathBuf>,
    /// Serve HTTPS with the certificate of `isopod tls init`, which is created if it does not exist.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Serve HTTPS with the certificate in this PEM file, followed by its intermediate certificates.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Allow listening without HTTPS on an address that other machines can reach.
    #[arg(long)]
    pub(crate) insecure_listen: bool,
    /// Serve GET /metrics without a key; otherwise it requires an admin key.
    #[arg(long)]
    pub(crate) open_metrics: bool,
    /// Whether to serve tools for coding agents at /mcp [default: on].
    #[arg(long, value_name = "STATE")]
    pub(crate) mcp: Option<Switch>,
    /// Whether to serve the dashboard, pages for browsers [default: on].
    #[arg(long, env = env_names::DASHBOARD, value_name = "STATE")]
    pub(crate) dashboard: Option<Switch>,
    /// Templates to prepare at startup, or `none`; others are prepared on first use [default: code-interpreter-v1].
    #[arg(long, env = env_names::PREPARE, value_name = "TEMPLATE", value_delimiter = ',')]
    pub(crate) prepare: Option<Vec<String>>,
    /// Program that saves and restores the memory of sandboxes [default: criu of Isopod's package].
    #[arg(long, env = env_names::CRIU, value_name = "FILE")]
    pub(crate) criu: Option<PathBuf>,
    /// Seconds until the memory of a paused sandbox moves to disk, or 0 to keep it in RAM [default: 60].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) save_paused_after: Option<u64>,
    /// Seconds until saved memory that nobody uses is compressed, or 0 to keep it as it is [default: 900].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) pack_memory_after: Option<u64>,
    /// Copy sessions to this Redis, and share their lock with other servers.
    #[arg(long, env = env_names::REDIS_URL, hide_env_values = true, value_name = "URL")]
    pub(crate) redis_url: Option<String>,
    /// Keep the files of runs in sessions/ID below this directory, where other programs can find them, instead of in
    /// the state directory.
    #[arg(long, env = env_names::RFS_BASE, value_name = "DIRECTORY")]
    pub(crate) run_files: Option<PathBuf>,
    /// Host of the agent service, which runs workflow agents that have no URL and is notified when a run ends.
    #[arg(long, env = env_names::AGENT_HOST, value_name = "HOST")]
    pub(crate) agent_host: Option<String>,
    /// Port of the agent service [default: 8000].
    #[arg(long, env = env_names::AGENT_PORT, value_name = "PORT")]
    pub(crate) agent_port: Option<u16>,
    /// Number of sandboxes of each template to keep ready [default: 8].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) pool_ready: Option<usize>,
    /// Number of sandboxes of each template to keep prepared, without a running guest [default: 8].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) pool_prepared: Option<usize>,
    /// Mirror for images whose names start with NAME, or `offline` to contact no registry; comma-separated.
    #[arg(long, env = env_names::REGISTRY_MIRRORS, value_name = "NAME=PLACE", value_delimiter = ',')]
    pub(crate) registry_mirror: Option<Vec<String>>,
    /// Internal hosts and networks that users may name in webhooks, agents, ADD and image names, such as 10.0.0.0/8 or
    /// registry.lan:5000; comma-separated [default: public addresses only].
    #[arg(long, env = env_names::ALLOW_OUTBOUND, value_name = "PLACE", value_delimiter = ',')]
    pub(crate) allow_outbound: Option<Vec<String>>,
    /// Private networks that sandboxes may reach if their `allowOut` names them, such as 10.1.0.0/16; comma-separated
    /// [default: none].
    #[arg(long, env = env_names::SANDBOX_NETWORKS, value_name = "CIDR", value_delimiter = ',')]
    pub(crate) sandbox_networks: Option<Vec<String>>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Where the sandbox service runs its sandboxes: on this server, or on another E2B-compatible server, whose key is
    /// in the environment variable E2B_API_KEY [default: local].
    #[arg(long, env = env_names::BACKEND, value_name = "KIND")]
    pub(crate) backend: Option<BackendKind>,
    /// API URL of the remote backend [default: https://api.e2b.app].
    #[arg(long, env = env_names::BACKEND_URL, value_name = "URL")]
    pub(crate) backend_url: Option<String>,
    /// Base URL of the remote backend's sandboxes [default: the API URL if it is on this machine, else the backend's
    /// domain].
    #[arg(long, env = env_names::BACKEND_SANDBOX_URL, value_name = "URL")]
    pub(crate) backend_sandbox_url: Option<String>,
}

/// Whether something is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Switch {
    On,
    Off,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}

/// Where the sandboxes of the service come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BackendKind {
    /// This server.
    Local,
    /// Another E2B-compatible server.
    Remote,
}
