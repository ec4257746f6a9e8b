//! The server's place in a cluster: joining it at the first start, and the listener for the other servers.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use isopod_node::StateRoot;
use isopod_peer::{ClusterSettings, Identity, JoinTarget, ServerId, join};
use isopod_store::server_id;
use serde::Deserialize;

use crate::args::ServeArgs;
use crate::failure::Hint;

/// `[cluster]` of the settings file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ClusterTable {
    /// As `--peer-listen`.
    listen: Option<SocketAddr>,
    /// As `--peer-address`.
    address: Option<String>,
    /// As `--join-file`.
    join_file: Option<PathBuf>,
}

/// How this server takes part in a cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterChoice {
    listen: Option<SocketAddr>,
    address: Option<String>,
    join: Option<JoinSource>,
}

/// Where the token is.
#[derive(Clone, Debug)]
enum JoinSource {
    Given(JoinTarget),
    File(PathBuf),
}

impl ClusterTable {
    pub(super) fn choose(&self, args: &ServeArgs) -> anyhow::Result<ClusterChoice> {
        let given = args.join.as_deref().filter(|text| !text.is_empty());
        let given = given.map(|text| text.parse().map(JoinSource::Given).context("--join")).transpose()?;
        let file = args.join_file.clone().or_else(|| self.join_file.clone()).map(JoinSource::File);
        Ok(ClusterChoice {
            listen: args.peer_listen.or(self.listen),
            address: args.peer_address.clone().or_else(|| self.address.clone()).filter(|address| !address.is_empty()),
            join: given.or(file),
        })
    }
}

impl ClusterChoice {
    /// Joins the cluster if the server is in none yet. Returns `None` for a server without a cluster.
    pub(super) async fn open(&self, state: &StateRoot) -> anyhow::Result<Option<ClusterSettings>> {
        let identity = match (Identity::read(state.path())?, &self.join) {
            (Some(identity), _) => identity,
            (None, Some(source)) => first_join(source, state).await?,
            (None, None) if self.listen.is_some() => {
                return Err(Hint::new(
                    "--peer-listen is for servers of a cluster, and this one is in none",
                    "make a cluster with: isopod cluster init, or join one with --join TOKEN@HOST:PORT",
                ));
            }
            (None, None) => return Ok(None),
        };
        let Some(listen) = self.listen else {
            return Err(Hint::new(
                "this server is in a cluster, and the others can't reach it",
                "say where it listens for them: --peer-listen ADDRESS:7443",
            ));
        };
        if listen.ip().is_unspecified() && self.address.is_none() {
            return Err(Hint::new(
                format!("{listen} is not an address by which other servers can reach this one"),
                "add --peer-address HOST:PORT",
            ));
        }
        let database = identity.database().map(str::to_owned);
        let state_dir = state.path().to_owned();
        Ok(Some(ClusterSettings { identity, state_dir, listen, address: self.address.clone(), database }))
    }
}

async fn first_join(source: &JoinSource, state: &StateRoot) -> anyhow::Result<Identity> {
    let target = match source {
        JoinSource::Given(target) => target.clone(),
        JoinSource::File(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
            text.parse().with_context(|| path.display().to_string())?
        }
    };
    let server = server_id(state.path()).context("could not make this server's id")?;
    let identity = join(&target, &ServerId::parse(&server)?).await?;
    identity.write(state.path())?;
    tracing::info!("joined the cluster; the token is used up and no longer needed");
    Ok(identity)
}
