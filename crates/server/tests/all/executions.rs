//! Files of executions over REST: uploads are found, complete, only by their owner, and no path leads out.

use crate::support;

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use http::Method;
use isopod_files::workspace::Workspace;
use serde_json::json;

use support::server::until;
use support::{Answer, Client, Server};

const FILES: &str = "/api/v1/executions/test_e2b_001/files";

struct Stage {
    server: Server,
    root: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl Fn(&mut isopod_server::ServerConfig) + Send + Sync + 'static) -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_owned();
        let server = Server::start_with(move |config| {
            config.control.workspace = Some(Workspace::new(&path));
            config.control.recheck_every = Duration::from_millis(50);
            change(config);
        })
        .await;
        Self { server, root }
    }

    /// Returns a path of the execution on the host.
    fn path(&self, key: &str) -> PathBuf {
        self.root.path().join("executions/test_e2b_001").join(key)
    }
}

async fn put(client: &Client, path: &str, body: &'static [u8]) -> Answer {
    client.raw(Method::PUT, path, &[("x-api-key", &client.key)], body.into()).await
}

/// The path that is returned for a key is where the file is.
#[tokio::test]
async fn what_is_put_under_a_name_is_an_artifact_and_comes_back() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    let made = put(client, &format!("{FILES}/test.txt"), b"Hello from host!").await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.json["key"], "artifacts/test.txt");
    assert_eq!(made.json["path"], "/opt/sentient/executions/test_e2b_001/artifacts/test.txt");
    assert_eq!(std::fs::read(stage.path("artifacts/test.txt")).unwrap(), b"Hello from host!");
    for key in ["test.txt", "artifacts/test.txt", "/artifacts//test.txt"] {
        let got = client.get(&format!("{FILES}/{key}")).await;
        assert_eq!((got.status, got.text.as_str()), (200, "Hello from host!"), "{key}");
        assert_eq!(got.headers["x-content-type-options"], "nosniff");
    }
    let head = client.call(Method::HEAD, &format!("{FILES}/test.txt"), &[], None).await;
    assert_eq!((head.status, head.headers["content-length"].to_str().unwrap()), (200, "16"));
}

#[tokio::test]
async fn an_opened_execution_has_its_directories_and_tells_what_it_takes() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    let opened = client.call(Method::PUT, "/api/v1/executions/test_e2b_001", &[], None).await;
    assert_eq!((opened.status, opened.json["file_count"].as_u64()), (200, Some(0)));
    for dir in ["artifacts", "temp", "results", "results/plots", "results/reports", "outputs", "logs"] {
        assert!(stage.path(dir).is_dir(), "{dir}");
    }
    put(client, &format!("{FILES}/results/a.bin"), &[7; 1_572_864]).await;
    let info = client.get("/api/v1/executions/test_e2b_001/info").await.json;
    assert_eq!(info["execution_id"], "test_e2b_001");
    assert_eq!((&info["total_size_bytes"], &info["total_size_mb"]), (&json!(1_572_864), &json!(1.5)));
    assert_eq!((&info["file_count"], &info["root_path"]), (&json!(1), &json!("/opt/sentient/executions/test_e2b_001")));
    assert_eq!(info["plots_path"], "/opt/sentient/executions/test_e2b_001/results/plots");
    assert_eq!(client.get("/api/v1/executions").await.json[0]["execution_id"], "test_e2b_001");
}

/// An execution belongs to its first user. It does not exist for others.
#[tokio::test]
async fn another_team_finds_nothing_of_an_execution() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    put(client, &format!("{FILES}/secret"), b"ours").await;
    let other = stage.server.other_team().await;
    assert_eq!(other.get(&format!("{FILES}/secret")).await.status, 404);
    assert_eq!(put(&other, &format!("{FILES}/secret"), b"theirs").await.status, 404);
    assert_eq!(other.get("/api/v1/executions/test_e2b_001/info").await.status, 404);
    assert_eq!(other.delete("/api/v1/executions/test_e2b_001").await.status, 404);
    assert_eq!(other.get("/api/v1/executions").await.json, json!([]));
    let body = json!({ "templateID": "base", "metadata": { "execution_id": "test_e2b_001" } });
    assert_eq!(other.post("/v2/sandboxes", body).await.status, 404);
    assert_eq!(other.post("/api/v1/executions/test_e2b_001/toolkit/get_sandbox_status", json!({})).await.status, 404);
    assert_eq!(client.get(&format!("{FILES}/secret")).await.text, "ours");
}

/// Metadata of another team's sandboxes does not affect an execution.
#[tokio::test]
async fn another_teams_words_do_not_keep_an_execution() {
    let stage = Stage::new().await;
    put(&stage.server.client, &format!("{FILES}/a"), b"a").await;
    let other = stage.server.other_team().await;
    let body = json!({ "agent_id": "a", "metadata": { "execution_id": "test_e2b_001" } });
    let made = other.post("/api/v1/sandboxes", body.clone()).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(stage.server.client.delete("/api/v1/executions/test_e2b_001").await.status, 204);
    assert_eq!(stage.server.client.get(&format!("{FILES}/a")).await.status, 404);
}

#[tokio::test]
async fn keys_and_ids_that_lead_out_are_refused() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    for path in [
        "/api/v1/executions/test_e2b_001/files/..%2f..%2fx",
        "/api/v1/executions/test_e2b_001/files/a/%2e%2e/%2e%2e/%2e%2e/x",
        "/api/v1/executions/..%2fx/files/y",
        "/api/v1/executions/.hidden/files/y",
        "/api/v1/executions/test_e2b_001/files/a%00b",
        "/api/v1/executions/test_e2b_001/files/a.metadata",
        "/api/v1/executions/test_e2b_001/files/.isopod-unfinished-1",
    ] {
        assert_eq!(put(client, path, b"x").await.status, 400, "{path}");
    }
    assert!(std::fs::read_dir(stage.root.path()).unwrap().all(|entry| entry.unwrap().file_name() == "executions"));
}

/// Code in a sandbox can create any link in its directory. None is followed.
#[tokio::test]
async fn links_that_a_sandbox_made_are_not_followed() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    put(client, &format!("{FILES}/a"), b"a").await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("key"), "secret").unwrap();
    symlink(outside.path().join("key"), stage.path("artifacts/link")).unwrap();
    symlink(outside.path(), stage.path("artifacts/dir")).unwrap();
    symlink("../../../../../../../../../../etc/passwd", stage.path("artifacts/up")).unwrap();
    for key in ["link", "dir/key", "up"] {
        assert_eq!(client.get(&format!("{FILES}/{key}")).await.status, 404, "{key}");
    }
    assert_ne!(put(client, &format!("{FILES}/dir/new"), b"x").await.status, 201);
    assert_eq!(put(client, &format!("{FILES}/link"), b"mine").await.status, 201);
    assert_eq!(std::fs::read_to_string(outside.path().join("key")).unwrap(), "secret");
    assert!(!outside.path().join("new").exists());
    std::fs::remove_dir_all(stage.path("temp")).unwrap();
    symlink(outside.path(), stage.path("temp")).unwrap();
    let cleaned = client.post("/api/v1/executions/test_e2b_001/cleanup", json!({ "older_than_hours": 0 })).await;
    assert_ne!(cleaned.json["removed"], 1, "{cleaned:?}");
    client.delete("/api/v1/executions/test_e2b_001").await;
    assert!(outside.path().join("key").exists());
    // A pipe is not a file, and blocks nobody.
    put(client, &format!("{FILES}/a"), b"a").await;
    let made = std::process::Command::new("mkfifo").arg(stage.path("artifacts/pipe")).status().unwrap();
    assert!(made.success());
    assert_eq!(client.get(&format!("{FILES}/pipe")).await.status, 400);
}

/// Metadata follows its file through every change.
#[tokio::test]
async fn metadata_goes_with_its_file() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    let note = r#"{"rows":3,"by":"\u00e9"}"#;
    let headers = [("x-api-key", client.key.as_str()), ("x-isopod-metadata", note)];
    let made = client.raw(Method::PUT, &format!("{FILES}/t.csv"), &headers, "1".into()).await;
    assert_eq!(made.status, 201, "{made:?}");
    let noted =
        |answer: &Answer| serde_json::from_slice::<serde_json::Value>(answer.headers["x-isopod-metadata"].as_bytes());
    let got = client.get(&format!("{FILES}/t.csv")).await;
    assert_eq!(noted(&got).unwrap(), json!({ "rows": 3, "by": "é" }));
    let transfer = |from: &str, to: &str| json!({ "from": from, "to": to });
    let copied = client.post("/api/v1/executions/test_e2b_001/copy", transfer("t.csv", "results/c.csv")).await;
    assert_eq!((copied.status, &copied.json["key"]), (200, &json!("results/c.csv")));
    let moved = client.post("/api/v1/executions/test_e2b_001/move", transfer("t.csv", "outputs/m.csv")).await;
    assert_eq!(moved.status, 200, "{moved:?}");
    assert_eq!(client.get(&format!("{FILES}/t.csv")).await.status, 404);
    for key in ["results/c.csv", "outputs/m.csv"] {
        assert_eq!(noted(&client.get(&format!("{FILES}/{key}")).await).unwrap()["rows"], 3, "{key}");
    }
    let keys = client.get(FILES).await.json;
    let keys: Vec<&str> = keys.as_array().unwrap().iter().map(|file| file["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["outputs/m.csv", "results/c.csv"]);
    put(client, &format!("{FILES}/outputs/m.csv"), b"new").await;
    assert!(!client.get(&format!("{FILES}/outputs/m.csv")).await.headers.contains_key("x-isopod-metadata"));
    assert_eq!(client.delete(&format!("{FILES}/results/c.csv")).await.status, 204);
    assert!(!stage.path("results/c.csv.metadata").exists());
    let bad = [("x-api-key", client.key.as_str()), ("x-isopod-metadata", "[1]")];
    assert_eq!(client.raw(Method::PUT, &format!("{FILES}/b"), &bad, "1".into()).await.status, 400);
}

/// Concurrent writers do not share a temporary name.
#[tokio::test]
async fn writers_of_one_key_at_once_leave_one_whole_file() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    let writers = (0..16u8).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            let body = vec![number; 300_000];
            client.raw(Method::PUT, &format!("{FILES}/same"), &[("x-api-key", &client.key)], body.into()).await.status
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        assert_eq!(writer.await.unwrap(), 201);
    }
    let found = std::fs::read(stage.path("artifacts/same")).unwrap();
    assert_eq!(found.len(), 300_000);
    assert!(found.iter().all(|byte| *byte == found[0]));
    assert_eq!(std::fs::read_dir(stage.path("artifacts")).unwrap().count(), 1);
}

/// `max_file_size`, and a quota for all files together. Existing files stay.
#[tokio::test]
async fn what_is_too_large_is_refused_and_leaves_nothing() {
    let stage = Stage::with(|config| {
        config.control.files.max_file_size = 1000;
        config.control.files.execution_quota = 2500;
    })
    .await;
    let client = &stage.server.client;
    assert_eq!(put(client, &format!("{FILES}/a"), &[1; 1000]).await.status, 201);
    assert_eq!(put(client, &format!("{FILES}/a"), &[2; 1001]).await.status, 413);
    assert_eq!(put(client, &format!("{FILES}/b"), &[2; 1000]).await.status, 201);
    assert_eq!(put(client, &format!("{FILES}/c"), &[3; 1000]).await.status, 507);
    assert_eq!(client.get(&format!("{FILES}/c")).await.status, 404);
    assert_eq!(client.get(&format!("{FILES}/a")).await.text.as_bytes(), [1; 1000]);
    assert_eq!(client.delete(&format!("{FILES}/b")).await.status, 204);
    assert_eq!(put(client, &format!("{FILES}/c"), &[3; 1000]).await.status, 201);
    // Replacing a file takes only the difference in size.
    assert_eq!(put(client, &format!("{FILES}/d"), &[3; 400]).await.status, 201);
    assert_eq!(std::fs::read_dir(stage.path("artifacts")).unwrap().count(), 3);
}

/// If a client disconnects in the middle, the existing file stays.
#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    use tokio::io::AsyncWriteExt as _;
    let stage = Stage::new().await;
    let client = &stage.server.client;
    put(client, &format!("{FILES}/a"), b"old").await;
    let mut stream = tokio::net::TcpStream::connect(stage.server.address).await.unwrap();
    let head =
        format!("PUT {FILES}/a HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\ncontent-length: 1000\r\n\r\nhalf", client.key);
    stream.write_all(head.as_bytes()).await.unwrap();
    let unfinished = || async { std::fs::read_dir(stage.path("artifacts")).unwrap().count() };
    until("the upload has begun", || async { unfinished().await == 2 }).await;
    drop(stream);
    until("nothing of it is left", || async { unfinished().await == 1 }).await;
    assert_eq!(client.get(&format!("{FILES}/a")).await.text, "old");
}

/// Old temporary files are removed, with directories that are then empty.
#[tokio::test]
async fn temporary_files_are_cleaned_up() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    for key in ["temp/a", "temp/deep/er/b", "temp/new", "artifacts/kept"] {
        put(client, &format!("{FILES}/{key}"), b"x").await;
    }
    let old = std::time::SystemTime::now() - Duration::from_secs(25 * 3600);
    for key in ["temp/a", "temp/deep/er/b"] {
        std::fs::File::options().write(true).open(stage.path(key)).unwrap().set_modified(old).unwrap();
    }
    let cleanup = "/api/v1/executions/test_e2b_001/cleanup";
    assert_eq!(client.post(cleanup, json!({})).await.json, json!({ "removed": 2 }));
    assert!(!stage.path("temp/deep").exists() && stage.path("temp/new").exists());
    assert_eq!(client.post(cleanup, json!({ "older_than_hours": 0 })).await.json, json!({ "removed": 1 }));
    assert!(stage.path("artifacts/kept").exists());
    for bad in [json!({ "older_than_hours": -1 }), json!({ "older_than_hours": 1e300 }), json!({ "x": 1 })] {
        assert_eq!(client.post(cleanup, bad.clone()).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn keys_are_listed_by_prefix_and_time_in_pages() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    for key in ["b", "a/1", "a/%C3%A9", "results/plots/p.png"] {
        put(client, &format!("{FILES}/{key}"), b"x").await;
    }
    let keys = |answer: &Answer| -> Vec<String> {
        answer.json.as_array().unwrap().iter().map(|file| file["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&client.get(&format!("{FILES}?prefix=a/")).await), ["artifacts/a/1", "artifacts/a/é"]);
    assert_eq!(keys(&client.get(&format!("{FILES}?prefix=results/pl")).await), ["results/plots/p.png"]);
    let first = client.get(&format!("{FILES}?limit=2")).await;
    let next = first.headers["x-next-token"].to_str().unwrap().to_owned();
    let second = client.get(&format!("{FILES}?limit=2&nextToken={next}")).await;
    assert_eq!((keys(&first).len(), keys(&second).len()), (2, 2));
    assert_eq!(client.get(&format!("{FILES}?nextToken=%C3%A9")).await.status, 400);
    assert!(!second.headers.contains_key("x-next-token"));
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::options().write(true).open(stage.path("artifacts/b")).unwrap().set_modified(old).unwrap();
    let recent = client.get(&format!("{FILES}?modifiedSince=2020-01-01T00:00:00Z")).await;
    assert_eq!(keys(&recent).len(), 3);
    assert_eq!(client.get(&format!("{FILES}?modifiedSince=soon")).await.status, 400);
}

/// Executions that were unused for the configured time are removed, unless a live sandbox has them mounted.
#[tokio::test]
async fn executions_past_their_time_are_removed() {
    let stage = Stage::with(|config| config.control.files.execution_retention = Some(Duration::from_millis(300))).await;
    let client = &stage.server.client;
    put(client, &format!("{FILES}/a"), b"x").await;
    put(client, "/api/v1/executions/used/files/a", b"x").await;
    let id = stage.server.create(json!({ "metadata": { "execution_id": "used" } })).await;
    until("the unused one is gone", || async {
        client.get("/api/v1/executions/test_e2b_001/info").await.status == 404
    })
    .await;
    assert!(!stage.path("").exists(), "its files go before its name");
    assert!(stage.root.path().join("executions/used").exists());
    client.delete(&format!("/sandboxes/{id}")).await;
    until("the other follows", || async { !stage.root.path().join("executions/used").exists() }).await;
}

/// A sandbox that kept its mount would see the files of the id's next owner.
#[tokio::test]
async fn an_execution_is_not_removed_under_a_live_sandbox() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    put(client, &format!("{FILES}/a"), b"x").await;
    let id = stage.server.create(json!({ "metadata": { "execution_id": "test_e2b_001" } })).await;
    assert_eq!(client.delete("/api/v1/executions/test_e2b_001").await.status, 409);
    assert_eq!(client.get(&format!("{FILES}/a")).await.text, "x");
    assert_eq!(put(client, &format!("{FILES}/b"), b"x").await.status, 201);
    client.delete(&format!("/sandboxes/{id}")).await;
    assert_eq!(client.delete("/api/v1/executions/test_e2b_001").await.status, 204);
}

/// The id of a removed execution is free for any team, but nothing of its files is left.
#[tokio::test]
async fn a_removed_execution_leaves_no_file_to_the_next_owner() {
    let stage = Stage::new().await;
    let client = &stage.server.client;
    put(client, &format!("{FILES}/secret"), b"ours").await;
    let mut deep = stage.path("artifacts");
    for _ in 0..300 {
        deep.push("d");
        std::fs::create_dir(&deep).unwrap();
    }
    assert_eq!(client.delete("/api/v1/executions/test_e2b_001").await.status, 204);
    assert!(!stage.path("").exists());
    let other = stage.server.other_team().await;
    assert_eq!(put(&other, &format!("{FILES}/a"), b"theirs").await.status, 201);
    assert_eq!(other.get(&format!("{FILES}/secret")).await.status, 404);
    assert_eq!(client.get(&format!("{FILES}/a")).await.status, 404);
}

/// Without a workspace, the server runs, and says that there is none.
#[tokio::test]
async fn without_a_workspace_the_routes_say_so() {
    let server = Server::start().await;
    let answer = put(&server.client, &format!("{FILES}/a"), b"x").await;
    assert_eq!(answer.status, 501, "{answer:?}");
    assert_eq!(server.client.post("/volumes", json!({ "name": "v" })).await.status, 501);
}

/// The metadata of a create request mounts the execution's files, at the path on the host.
#[tokio::test]
async fn a_sandbox_of_an_execution_gets_its_files_mounted() {
    let stage = Stage::new().await;
    let id = stage.server.create(json!({ "metadata": { "execution_id": "test_e2b_001" } })).await;
    let spec = stage.server.node.spec_of(&id).unwrap();
    assert_eq!(spec.mounts[0].path, "/opt/sentient/executions/test_e2b_001");
    assert_eq!(spec.mounts[0].subtree, "executions/test_e2b_001");
}
