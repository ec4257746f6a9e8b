//! A real PostgreSQL for tests, and the store that a test uses. `ISOPOD_TEST_STORE=postgres` selects it.
//!
//! PostgreSQL refuses to run as root, so root runs it as the user of its package, on a socket in a directory of its
//! own. A shell waits for the end of this process, however it ends, and then stops PostgreSQL and removes the
//! directory.

#![allow(clippy::unwrap_used, reason = "only tests use it")]

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// A PostgreSQL server.
#[derive(Debug)]
pub struct Postgres {
    dir: tempfile::TempDir,
    programs: PathBuf,
    /// Stops the server when its input is closed.
    keeper: Option<Child>,
}

/// Starts a server, waits until its input is closed, stops the server, and runs a final command.
const KEEPER: &str = r#"
$3 "$0/postgres" -D "$1/data" -k "$1" -c listen_addresses= \
  -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=400 >"$1/log" 2>&1 </dev/null &
server=$!
cat >/dev/null
kill -INT $server
wait $server
$2 "$1"
"#;

/// Runs a program as the user of the package. Only used by root.
const AS_POSTGRES: [&str; 4] = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"];

const TIMEOUT: Duration = Duration::from_secs(60);
const HINT: &str = "PostgreSQL is needed: apt-get install postgresql";

impl Postgres {
    fn prepare() -> Self {
        let dir = tempfile::Builder::new().prefix("isopod-pg-").tempdir().unwrap();
        let made = Self { dir, programs: programs(), keeper: None };
        let prefix = prefix();
        if !prefix.is_empty() {
            let chown = Command::new("chown").arg("postgres:postgres").arg(made.dir.path()).status();
            assert!(chown.unwrap().success(), "{HINT}");
        }
        let mut initdb = Command::new("env");
        initdb.args(prefix).arg(made.programs.join("initdb"));
        initdb.arg("-D").arg(made.dir.path().join("data"));
        initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8"]);
        let done = initdb.output().expect(HINT);
        assert!(done.status.success(), "initdb: {}", String::from_utf8_lossy(&done.stderr));
        made
    }

    pub fn start() -> Self {
        let mut made = Self::prepare();
        made.start_again();
        made
    }

    pub fn start_again(&mut self) {
        self.launch("true");
    }

    fn launch(&mut self, afterwards: &str) {
        let mut keeper = Command::new("sh");
        keeper.arg("-c").arg(KEEPER).arg(&self.programs).arg(self.dir.path()).arg(afterwards).arg(prefix().join(" "));
        keeper.stdin(Stdio::piped());
        self.keeper = Some(keeper.spawn().unwrap());
        let deadline = Instant::now() + TIMEOUT;
        let ready = self.programs.join("pg_isready");
        while !Command::new(&ready).arg("-qh").arg(self.dir.path()).status().expect(HINT).success() {
            let said = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "PostgreSQL does not answer: {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn stop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }

    pub fn url(&self, database: &str) -> String {
        url(self.dir.path(), database)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether this run of the tests uses PostgreSQL.
pub fn is_wanted() -> bool {
    match std::env::var("ISOPOD_TEST_STORE").as_deref() {
        Ok("postgres") => true,
        Ok("sqlite") | Err(_) => false,
        Ok(other) => panic!("ISOPOD_TEST_STORE is {other:?}, not sqlite or postgres"),
    }
}

/// The URL of the database for a test's directory. It is always the same for the same directory.
pub fn url_for(dir: &Path) -> String {
    url(shared_server(), &name_for(dir))
}

fn name_for(dir: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    format!("test_{:016x}", hasher.finish())
}

/// Like [`url_for`], but creates the database if it does not exist.
pub async fn database_for(dir: &Path) -> String {
    let name = name_for(dir);
    let socket = shared_server();
    let mut connection = PgConnection::connect(&url(socket, "postgres")).await.unwrap();
    let made = sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await;
    if let Err(error) = made {
        assert!(error.to_string().contains("already exists"), "{error}");
    }
    connection.close().await.unwrap();
    url(socket, &name)
}

fn url(socket: &Path, database: &str) -> String {
    format!("postgres://postgres@localhost/{database}?host={}", socket.display())
}

/// One server for all tests of this process. Its keeper removes it when the process ends.
fn shared_server() -> &'static Path {
    static SERVER: OnceLock<PathBuf> = OnceLock::new();
    SERVER.get_or_init(|| {
        let mut server = Postgres::prepare();
        server.launch("rm -rf");
        // Statics are never dropped. The keeper notices the end of the process because its input is closed.
        let dir = server.dir.path().to_owned();
        std::mem::forget(server);
        dir
    })
}

fn prefix() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &AS_POSTGRES } else { &[] }
}

/// The directory with the programs of the package. Only some of them are in the PATH.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect(HINT);
    let mut found: Vec<PathBuf> = versions.map(|entry| entry.unwrap().path().join("bin")).collect();
    found.sort();
    found.pop().expect(HINT)
}
