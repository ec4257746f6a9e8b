//! What `isopod serve` can be told. What is not typed may stand in the environment or in a file, so nothing has its
//! default here.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{DatabaseArgs, StoreArgs};
use crate::env_names;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct ServeArgs {
    /// Settings in a TOML file. What is typed or in the environment comes before what is in the file.
    #[arg(long, env = env_names::CONFIG, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:3000].
    #[arg(long, env = env_names::LISTEN, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// The domain of sandbox host names, {port}-{id}.DOMAIN [default: isopod.localhost with the port].
    #[arg(long, env = env_names::DOMAIN, value_name = "DOMAIN")]
    pub(crate) domain: Option<String>,
    /// The first API key, instead of a random one.
    #[arg(long, env = env_names::API_KEY, hide_env_values = true, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// What this server is called where several share a database [default: the host's name].
    #[arg(long, env = env_names::NODE_NAME, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// Speak https, with the certificate of `isopod tls init`, which is made when it is not there.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Speak https with this certificate, in PEM, followed by those that lead to its authority.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Listen on an address that others can reach although the connection is not encrypted.
    #[arg(long)]
    pub(crate) insecure_listen: bool,
    /// Answer GET /metrics without a key. Otherwise it wants an admin key.
    #[arg(long)]
    pub(crate) open_metrics: bool,
    /// Templates to make ready at the start, or `none`. Others are made when they are first asked for
    /// [default: code-interpreter-v1].
    #[arg(long, env = env_names::PREPARE, value_name = "TEMPLATE", value_delimiter = ',')]
    pub(crate) prepare: Option<Vec<String>>,
    /// Write sessions through to this Redis, and share their lock with other servers.
    #[arg(long, env = env_names::REDIS_URL, hide_env_values = true, value_name = "URL")]
    pub(crate) redis_url: Option<String>,
    /// Keep the files of runs in sessions/ID below this directory, where others find them, instead of in the state.
    #[arg(long, env = env_names::RFS_BASE, value_name = "DIRECTORY")]
    pub(crate) run_files: Option<PathBuf>,
    /// The agent service: agents of workflows without a URL are invoked there, and it is told when a run has ended.
    #[arg(long, env = env_names::AGENT_HOST, value_name = "HOST")]
    pub(crate) agent_host: Option<String>,
    /// The agent service's port [default: 8000].
    #[arg(long, env = env_names::AGENT_PORT, value_name = "PORT")]
    pub(crate) agent_port: Option<u16>,
    /// How many sandboxes of each template to keep ready [default: 8].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) pool_ready: Option<usize>,
    /// How many sandboxes to keep prepared [default: 8].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) pool_prepared: Option<usize>,
    /// Another place for images whose names begin so, NAME=PLACE; several with commas, or `offline` to ask nobody.
    #[arg(long, env = env_names::REGISTRY_MIRRORS, value_name = "NAME=PLACE", value_delimiter = ',')]
    pub(crate) registry_mirror: Option<Vec<String>>,
    /// Internal hosts and networks that users may name in webhooks, agents, ADD and image names, such as 10.0.0.0/8 or
    /// registry.lan:5000; several with commas. Without it they reach public addresses only.
    #[arg(long, env = env_names::ALLOW_OUTBOUND, value_name = "PLACE", value_delimiter = ',')]
    pub(crate) allow_outbound: Option<Vec<String>>,
    /// Private networks that sandboxes may reach if their `allowOut` names them, such as 10.1.0.0/16; several with commas.
    /// Without it they reach none.
    #[arg(long, env = env_names::SANDBOX_NETWORKS, value_name = "CIDR", value_delimiter = ',')]
    pub(crate) sandbox_networks: Option<Vec<String>>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Where the sandboxes of the service come from: this server's own node, or another E2B-compatible server, whose key is
    /// E2B_API_KEY in the environment [default: local].
    #[arg(long, env = env_names::BACKEND, value_name = "KIND")]
    pub(crate) backend: Option<BackendKind>,
    /// The API of a remote backend [default: https://api.e2b.app].
    #[arg(long, env = env_names::BACKEND_URL, value_name = "URL")]
    pub(crate) backend_url: Option<String>,
    /// The way into the sandboxes of a remote backend, where it is not below its domain. A server of this machine has one
    /// address for both.
    #[arg(long, env = env_names::BACKEND_SANDBOX_URL, value_name = "URL")]
    pub(crate) backend_sandbox_url: Option<String>,
}

/// Where the sandboxes of the service come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BackendKind {
    /// This server's own node.
    Local,
    /// Another server.
    Remote,
}
