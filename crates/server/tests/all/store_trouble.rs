//! Problems with the store's disk and with the clock: clear errors, no orphans, and recovery afterwards. (A locked
//! store is in `faults.rs`; the same with real sandboxes is case 20 of the escape suite.)

use crate::support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use support::Server;
use support::server::until;

/// A small disk, removed when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Self {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(path).status();
        assert!(mounted.is_ok_and(|status| status.success()), "this test needs root, to mount a small disk");
        Self(path.to_owned())
    }

    /// Takes all free space.
    fn fill(&self) {
        let chunk = vec![0; 4096];
        let mut file = std::fs::File::create(self.0.join("fill")).unwrap();
        while std::io::Write::write_all(&mut file, &chunk).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

async fn new_sandbox(server: &Server) -> support::Answer {
    server.client.post("/v2/sandboxes", json!({ "templateID": "base" })).await
}

#[tokio::test]
async fn a_full_disk_gives_a_clear_error_and_recovers_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(dir.path());
    let server = Server::start_in(dir, |config| config.control.sample_every = Duration::from_secs(3600)).await;
    let (paused, killed) = (server.create(json!({})).await, server.create(json!({})).await);
    disk.fill();
    let mut refused = new_sandbox(&server).await;
    // The store's log may have room for a few more.
    for _ in 0..2000 {
        if refused.status != 201 {
            break;
        }
        refused = new_sandbox(&server).await;
    }
    assert_eq!((refused.status, refused.headers["should-retry"].to_str().unwrap()), (503, "true"), "{refused:?}");
    assert!(refused.text.contains("database cannot be used"));
    let made = server.node.count();
    assert_eq!(server.client.post(&format!("/sandboxes/{paused}/pause"), json!({})).await.status, 503);
    assert_eq!(
        server.client.inside(&paused, 8080, "/").await.status,
        200,
        "a pause that was not recorded is not begun"
    );
    assert_eq!(server.client.delete(&format!("/sandboxes/{killed}")).await.status, 204, "an end needs no room");
    assert_eq!((server.client.get("/v2/sandboxes").await.status, server.node.count()), (200, made - 1));
    disk.free();
    until("it works again", || async { new_sandbox(&server).await.status == 201 }).await;
    assert_eq!(server.client.post(&format!("/sandboxes/{paused}/pause"), json!({})).await.status, 204);
    until("the end is recorded", || async { !server.client.get("/v2/sandboxes").await.text.contains(&killed) }).await;
    drop((server, disk));
}

#[tokio::test]
async fn a_store_whose_file_was_removed_is_written_again() {
    let mut server = Server::start_with(|config| config.control.recheck_every = Duration::from_millis(50)).await;
    let before = server.create(json!({})).await;
    for ending in ["", "-wal", "-shm"] {
        let mut name = server.database().into_os_string();
        name.push(ending);
        std::fs::remove_file(name).unwrap();
    }
    let meanwhile = server.create(json!({})).await;
    until("the file is back", || async { server.database().exists() }).await;
    let after = server.create(json!({})).await;
    server.crash().await;
    let server = server.start_again().await;
    for id in [before, meanwhile, after] {
        assert_eq!(server.client.inside(&id, 8080, "/").await.status, 200);
    }
    assert_eq!(server.node.count(), 3);
}

/// The wall clock when a row was written may differ by years from the current one.
#[tokio::test]
async fn a_clock_that_jumped_while_the_server_was_down_ends_or_keeps_sandboxes_but_never_for_ever() {
    let mut server = Server::start_with(|config| config.control.max_lifetime = Duration::from_secs(2)).await;
    let early = server.create(json!({ "timeout": 1 })).await;
    let late = server.create(json!({ "timeout": 1 })).await;
    let paused = server.create(json!({})).await;
    server.client.post(&format!("/sandboxes/{paused}/pause"), json!({})).await;
    server.crash().await;
    let ten_years = 10 * 365 * 86_400_000_i64;
    for (id, by) in [(&early, ten_years), (&late, -ten_years), (&paused, ten_years)] {
        let shift = format!("started_at = started_at + {by}, ends_at = ends_at + {by}, created_at = created_at + {by}");
        server.sql(format!("UPDATE sandboxes SET {shift} WHERE id = '{id}'")).await;
    }
    let server = server.start_again().await;
    assert_eq!(server.client.get("/v2/sandboxes").await.status, 200);
    until("both have ended", || async { server.node.count() == 1 }).await;
    assert_eq!(server.client.post(&format!("/v2/sandboxes/{paused}/connect"), json!({})).await.status, 201);
    assert_eq!(server.client.inside(&paused, 8080, "/").await.status, 200);
}
