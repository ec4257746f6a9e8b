//! Clients that start to send and stop cost the server no threads and delay nobody else.

use crate::support;

use std::path::Path;
use std::time::Duration;

use http::Method;
use isopod_files::workspace::Workspace;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use support::Server;
use support::client::Client;
use support::server::until;

/// More than tokio's limit of blocking threads.
const MANY: usize = 600;

/// An upload whose first bytes have arrived.
async fn begin(client: &Client, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(client.address).await.unwrap();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\nContent-Length: 1000\r\n\r\nfirst",
        client.key
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Incomplete files, anywhere below.
fn unfinished(place: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(place) else { return 0 };
    let count = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => unfinished(&entry.path()),
        _ => usize::from(entry.file_name().to_string_lossy().starts_with(".isopod-")),
    };
    entries.map(|entry| count(entry.unwrap())).sum()
}

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(20), work).await;
    done.unwrap_or_else(|_| panic!("{what} had no answer while uploads were open"))
}

#[tokio::test]
async fn many_uploads_that_do_not_go_on_hold_up_nobody_else() {
    assert!(raise_open_files() > 4096, "the test needs open files");
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let server = Server::start_with(move |config| config.control.workspace = Some(Workspace::new(&path))).await;
    let other = server.other_team().await;
    let headers = [("x-api-key", other.key.as_str())];
    let put = other.raw(Method::PUT, "/runtime/mine/files/a.txt", &headers, "theirs".into()).await;
    assert_eq!(put.status, 201, "{put:?}");
    let put = other.raw(Method::PUT, "/api/v1/executions/mine/files/a.txt", &headers, "theirs".into()).await;
    assert_eq!(put.status, 201, "{put:?}");

    let mut open = Vec::new();
    for n in 0..MANY {
        let path = match n % 2 {
            0 => format!("/runtime/stalled/files/{n}.txt"),
            _ => format!("/api/v1/executions/stalled/files/{n}.txt"),
        };
        open.push(begin(&server.client, &path).await);
    }
    let sessions = server.database().parent().unwrap().join("sessions");
    let begun = || async { unfinished(&sessions) + unfinished(root.path()) };
    // Each reads the store first, which takes a while for so many.
    for _ in 0..20 {
        if begun().await >= 500 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(begun().await >= 500, "{} have begun", begun().await);
    let made = in_time("a create", other.post("/v2/sandboxes", json!({ "templateID": "base" }))).await;
    assert_eq!(made.status, 201, "{made:?}");
    for path in ["/runtime/mine/files/a.txt", "/api/v1/executions/mine/files/a.txt"] {
        let read = in_time(path, other.get(path)).await;
        assert_eq!((read.status, read.text.as_str()), (200, "theirs"), "{path}");
    }
    until("all have begun, and none has a thread to itself", || async { begun().await == MANY }).await;
    drop(open);
    until("what broke off leaves nothing", || async { begun().await == 0 }).await;
    assert_eq!(server.client.get("/runtime/stalled/files/0.txt").await.status, 404, "nor half a file");
}

/// Raises the soft limit of open files towards the hard one. Returns the new limit.
fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(1 << 20).min(1 << 20);
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).unwrap();
    wanted
}
