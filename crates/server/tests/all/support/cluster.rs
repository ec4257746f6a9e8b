//! Servers on one PostgreSQL that are a cluster.

use std::path::Path;
use std::time::Duration;

use isopod_peer::{ClusterSettings, Identity, JoinTarget, JoinToken, ServerId, init, join};
use isopod_server::ServerConfig;
use isopod_store::{Store, server_id};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::Server;
use super::postgres::database_for;
use super::server::until;

/// A cluster whose servers have these names.
pub struct Cluster {
    pub servers: Vec<Server>,
    url: String,
    /// Names the database.
    _dir: tempfile::TempDir,
}

impl Cluster {
    pub async fn start(
        names: &[&'static str],
        change: impl Fn(&mut ServerConfig) + Send + Sync + Copy + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = database_for(dir.path()).await;
        let mut servers: Vec<Server> = Vec::new();
        for name in names {
            let state = tempfile::tempdir().unwrap();
            let identity = match servers.first() {
                None => first(&url, state.path(), name).await,
                Some(member) => joined(member, state.path()).await,
            };
            let settings = settings(identity, state.path());
            let change = move |config: &mut ServerConfig| {
                config.control.cluster = Some(settings.clone());
                change(config);
            };
            servers.push(Server::start_member(state, (url.clone(), name), change).await);
        }
        let cluster = Self { servers, url, _dir: dir };
        cluster.meet().await;
        cluster
    }

    /// Runs a statement that changes rows.
    pub async fn sql(&self, script: String) {
        let mut database = PgConnection::connect(&self.url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut database).await.unwrap();
    }

    /// The first column of a query, which is text.
    pub async fn texts(&self, select: &str) -> Vec<String> {
        let mut database = PgConnection::connect(&self.url).await.unwrap();
        sqlx::query_scalar(AssertSqlSafe(select.to_owned())).fetch_all(&mut database).await.unwrap()
    }

    /// Waits until all know each other: the list of members is read every two seconds.
    async fn meet(&self) {
        for one in &self.servers {
            for other in &self.servers {
                let store = one.store();
                until("the servers know each other", || async {
                    let nodes = store.list_cluster_nodes().await.unwrap();
                    nodes.iter().any(|node| Some(&*node.server) == other.store().server_id() && node.is_reachable)
                })
                .await;
            }
        }
        tokio::time::sleep(Duration::from_millis(2300)).await;
    }
}

async fn first(url: &str, state: &Path, name: &str) -> Identity {
    let store = Store::connect(url, state, name).await.unwrap();
    let identity = init(&store, state, None).await.unwrap();
    store.close().await;
    identity
}

/// Joins by a token at the listener of a member.
pub async fn joined(member: &Server, state: &Path) -> Identity {
    let target = JoinTarget { token: token(member).await, address: peer_address(member).await };
    let id = ServerId::parse(&server_id(state).unwrap()).unwrap();
    let identity = join(&target, &id).await.unwrap();
    identity.write(state).unwrap();
    identity
}

/// A token for this member's cluster.
pub async fn token(member: &Server) -> JoinToken {
    let store = member.store();
    let token = JoinToken::new(store.cluster_authority().await.unwrap().unwrap());
    let id = &token.to_string()[20..28];
    store.add_cluster_token(id, &token.hash(), Duration::from_secs(600)).await.unwrap();
    token
}

/// Where a member listens for the others.
pub async fn peer_address(member: &Server) -> String {
    let id = member.store().server_id().unwrap();
    let address = || async {
        let nodes = member.store().list_cluster_nodes().await.unwrap();
        nodes.into_iter().find(|node| node.server == id).unwrap().address
    };
    until("it listens", || async { !address().await.is_empty() }).await;
    address().await
}

pub fn settings(identity: Identity, state: &Path) -> ClusterSettings {
    ClusterSettings {
        identity,
        state_dir: state.to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        address: None,
        database: None,
    }
}
