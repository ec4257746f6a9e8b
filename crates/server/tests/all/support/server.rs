//! A server on its own port, with its own store, that can be stopped and started again. It also has its own runtime:
//! when that is dropped, everything stops at once, as with `kill -9`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isopod_server::{ServerConfig, serve};
use isopod_store::{FirstKey, KeyGrant, Scope, Store};
use isopod_wire::node::Secret;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::client::Client;
use super::node::FakeNode;
use super::postgres;

pub const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

pub struct Server {
    pub node: Arc<FakeNode>,
    pub address: SocketAddr,
    pub client: Client,
    dir: Arc<tempfile::TempDir>,
    database: Option<Shared>,
    change: Change,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
    runtime: Option<Runtime>,
    store: Store,
}

/// A PostgreSQL database that several servers share: its URL, and the name of this server.
type Shared = (String, &'static str);

type Change = Arc<dyn Fn(&mut ServerConfig) + Send + Sync>;

impl Server {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl Fn(&mut ServerConfig) + Send + Sync + 'static) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::launch(FakeNode::new(), dir, None, Arc::new(change)).await
    }

    /// One of several servers on this database.
    pub async fn start_on(shared: Shared, change: impl Fn(&mut ServerConfig) + Send + Sync + 'static) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::launch(FakeNode::new(), dir, Some(shared), Arc::new(change)).await
    }

    /// A member of a cluster, with a state directory that has its certificates.
    pub async fn start_member(
        dir: tempfile::TempDir,
        shared: Shared,
        change: impl Fn(&mut ServerConfig) + Send + Sync + 'static,
    ) -> Self {
        Self::launch(FakeNode::new(), Arc::new(dir), Some(shared), Arc::new(change)).await
    }

    /// In the test's own directory, with that store.
    pub async fn start_in(dir: tempfile::TempDir, change: impl Fn(&mut ServerConfig) + Send + Sync + 'static) -> Self {
        Self::launch(FakeNode::new(), Arc::new(dir), None, Arc::new(change)).await
    }

    async fn launch(
        node: Arc<FakeNode>,
        dir: Arc<tempfile::TempDir>,
        database: Option<Shared>,
        change: Change,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let path = dir.path().to_owned();
        let serving_node: Arc<FakeNode> = Arc::clone(&node);
        let (stop, stopped) = oneshot::channel::<()>();
        let changing = Arc::clone(&change);
        let shared = database.clone();
        let starting = async move {
            let store = match shared {
                Some((url, name)) => Store::connect(&url, &path, name).await.unwrap(),
                None => open_store(&path).await,
            };
            let first = store.ensure_first_key(Some(Secret(KEY.to_owned()))).await.unwrap();
            assert!(matches!(first, FirstKey::Given));
            let mut config = ServerConfig::new(store.clone());
            config.control.sample_every = Duration::from_millis(50);
            config.control.drain = Duration::from_millis(300);
            changing(&mut config);
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let running =
                tokio::spawn(async move { serve(config, vec![listener], serving_node, stopped).await.unwrap() });
            (store, address, running)
        };
        let (store, address, running) = runtime.spawn(starting).await.unwrap();
        let client = Client::new(address, KEY);
        Self { node, address, client, dir, database, change, stop: Some(stop), running, runtime: Some(runtime), store }
    }

    /// Another team on the same server.
    pub async fn other_team(&self) -> Client {
        let key = self.store.create_team("others").await.unwrap();
        Client::new(self.address, &key.0)
    }

    /// A key with this scope, of the first team.
    pub async fn key_of(&self, scope: Scope) -> Client {
        let grant = KeyGrant { scope, lifetime: None };
        let (_, key) = self.store.create_local_key_with("scoped", &grant).await.unwrap();
        Client::new(self.address, &key.0)
    }

    /// The metrics for an admin.
    pub async fn metrics(&self) -> String {
        self.key_of(Scope::Admin).await.get("/metrics").await.text
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Stops the server gracefully. The node keeps running.
    pub async fn stop(&mut self) {
        drop(self.stop.take());
        (&mut self.running).await.unwrap();
    }

    /// Kills the server.
    pub async fn crash(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
        let _ = (&mut self.running).await;
    }

    /// A new server with the same store and node.
    pub async fn start_again(self) -> Self {
        let database = self.database.clone();
        Self::launch(Arc::clone(&self.node), Arc::clone(&self.dir), database, Arc::clone(&self.change)).await
    }

    /// The file of a store that is a file.
    pub fn database(&self) -> PathBuf {
        self.dir.path().join("isopod.db")
    }

    /// Changes the database behind the server's back.
    pub async fn sql(&self, script: impl Into<String>) {
        run_sql(self.dir.path(), script.into()).await.unwrap();
    }

    /// Like [`Self::sql`], for what the database refuses.
    pub async fn try_sql(&self, script: &str) -> Result<(), sqlx::Error> {
        run_sql(self.dir.path(), script.to_owned()).await
    }

    /// Returns the first column of a query's result as text.
    pub async fn texts(&self, select: &str) -> Vec<String> {
        let select = AssertSqlSafe(select.to_owned());
        if postgres::is_wanted() {
            let mut database = PgConnection::connect(&postgres::url_for(self.dir.path())).await.unwrap();
            return sqlx::query_scalar(select).fetch_all(&mut database).await.unwrap();
        }
        let mut database = SqliteConnection::connect(self.database().to_str().unwrap()).await.unwrap();
        sqlx::query_scalar(select).fetch_all(&mut database).await.unwrap()
    }

    /// Like [`Self::texts`], for a program that has set the search path of its connection. Only for PostgreSQL.
    pub async fn texts_in(&self, schema: &str, select: &str) -> Vec<String> {
        let url = format!("{}&options[search_path]={schema}", postgres::url_for(self.dir.path()));
        let mut database = PgConnection::connect(&url).await.unwrap();
        sqlx::query_scalar(AssertSqlSafe(select.to_owned())).fetch_all(&mut database).await.unwrap()
    }

    /// A sandbox with these fields in addition to the template.
    pub async fn create(&self, fields: serde_json::Value) -> String {
        let mut body = serde_json::json!({ "templateID": "base" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let made = self.client.post("/v2/sandboxes", body).await;
        assert_eq!(made.status, 201, "{made:?}");
        made.json["sandboxID"].as_str().unwrap().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The store of a directory, in a file or in PostgreSQL, depending on the test run.
pub async fn open_store(dir: &Path) -> Store {
    if !postgres::is_wanted() {
        return Store::open(dir.join("isopod.db")).await.unwrap();
    }
    Store::connect(&postgres::database_for(dir).await, dir, "test").await.unwrap()
}

async fn run_sql(dir: &Path, script: String) -> Result<(), sqlx::Error> {
    let script = AssertSqlSafe(script);
    if postgres::is_wanted() {
        let mut database = PgConnection::connect(&postgres::url_for(dir)).await?;
        return sqlx::raw_sql(script).execute(&mut database).await.map(drop);
    }
    let path = dir.join("isopod.db");
    let mut database = SqliteConnection::connect(path.to_str().unwrap()).await?;
    sqlx::raw_sql(script).execute(&mut database).await.map(drop)
}

/// Waits until `check` holds, for a state that is reached by itself.
pub async fn until<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    for _ in 0..6000 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain: {what}");
}
