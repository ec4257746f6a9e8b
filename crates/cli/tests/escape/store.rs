//! Case 20: the disk of the database is full, the database is locked, the database is gone.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use isopod_client::Guest;
use isopod_testkit::StateDir;
use serde_json::json;

use crate::BINARY;
use crate::common::KEY;
use crate::served::Served;
use crate::table::Table;

async fn create(served: &Served) -> crate::common::raw::Answer {
    served.api(KEY, "POST", "/v2/sandboxes", Some(&json!({ "templateID": "base" }))).await
}

async fn guest_of(served: &Served, id: &str) -> Guest {
    let id = id.parse().expect("an id");
    let sandbox = served.server.client().connect(&id, None).await.expect("it runs");
    sandbox.guest().clone().with_user("user")
}

/// Runs a command inside and gives what it said.
async fn run(served: &Served, id: &str, command: &str) -> String {
    let done = guest_of(served, id).await.run(command).await.expect("it answers");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Until the server works again; it was not restarted.
async fn recover(served: &Served) -> String {
    for _ in 0..200 {
        let made = create(served).await;
        if made.status == 201 {
            return made.json()["sandboxID"].as_str().expect("an id").to_owned();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it did not recover");
}

/// All that is listed is what is expected, and can be ended.
async fn end_all(served: Served, expected: &[&str]) {
    let mut expected: Vec<String> = expected.iter().map(|id| (*id).to_owned()).collect();
    expected.sort_unstable();
    let mut listed = list(&served).await;
    // An end that could not be recorded is recorded as soon as that is possible again.
    for _ in 0..100 {
        if listed == expected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        listed = list(&served).await;
    }
    assert_eq!(listed, expected, "no orphan and none lost");
    for id in listed {
        assert_eq!(served.kill(&id).await, 204);
    }
    served.finish();
}

async fn list(served: &Served) -> Vec<String> {
    let list = served.api(KEY, "GET", "/v2/sandboxes", None).await.json();
    let ids = list.as_array().expect("a list").iter().filter_map(|one| one["sandboxID"].as_str());
    let mut ids: Vec<String> = ids.map(str::to_owned).collect();
    ids.sort_unstable();
    ids
}

/// A small disk for the database alone. (The sandboxes' layers stay where they are: what a full disk does to them is
/// told in docs/operations.md.)
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Self {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs"]).arg(path).status();
        assert!(mounted.is_ok_and(|status| status.success()), "a small disk can be mounted");
        Self(path.to_owned())
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("fill")).expect("a file");
        let chunk = vec![0; 1 << 20];
        while std::io::Write::write_all(&mut file, &chunk).is_ok() {}
        while std::io::Write::write_all(&mut file, &chunk[..512]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("fill")).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn case_20_a_full_disk_is_told_and_leaves_no_orphan() {
    let state = StateDir::new(BINARY);
    let place = tempfile::tempdir().expect("a directory");
    let disk = SmallDisk::mount(place.path());
    std::os::unix::fs::symlink(place.path().join("isopod.db"), state.path().join("isopod.db")).expect("a link");
    let server = Served::serve(&state);
    let served = Served { state, server };
    let table = Table::new("20 The disk of the database is full");
    let before = served.create(json!({})).await.id;
    let ended = served.create(json!({})).await.id;
    let guest = guest_of(&served, &before).await;
    disk.fill();
    let mut made = Vec::new();
    // What was prepared before may still be had.
    let refused = loop {
        let answer = create(&served).await;
        match answer.status {
            201 => made.push(answer.json()["sandboxID"].as_str().expect("an id").to_owned()),
            _ => break answer,
        }
        assert!(made.len() < 40, "nothing is refused");
    };
    assert!((500..=507).contains(&refused.status) && refused.json()["message"].is_string(), "{refused:?}");
    table.held_for_all("create", format!("{}, nothing is left of it", refused.status));
    assert_eq!(guest.run("echo on").await.expect("it answers").stdout, b"on\n");
    table.held_for_all("commands in a sandbox that runs", "go on");
    assert_eq!(served.kill(&ended).await, 204);
    table.held_for_all("kill", "done");
    disk.free();
    let after = recover(&served).await;
    assert_eq!(run(&served, &after, "echo new").await, "new\n");
    table.held_for_all("create after room was made", "works without a restart");
    let mut expected = vec![before.as_str(), after.as_str()];
    expected.extend(made.iter().map(String::as_str));
    end_all(served, &expected).await;
    drop(disk);
}

/// Another program that holds the write lock of the database until it is told to stop.
fn lock(database: &Path) -> Child {
    let script = "import sqlite3,sys\nc=sqlite3.connect(sys.argv[1],isolation_level=None)\n\
                  c.execute('BEGIN IMMEDIATE')\nprint('locked',flush=True)\nsys.stdin.read()";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut said = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut said).expect("it locks");
    child
}

#[tokio::test]
async fn case_20_a_locked_database_is_told_and_leaves_no_orphan() {
    let served = Served::start();
    let table = Table::new("20 The database is locked");
    let before = served.create(json!({})).await.id;
    let mut other = lock(&served.state.path().join("isopod.db"));
    let refused = create(&served).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(
        refused.json()["message"].as_str().is_some_and(|text| text.contains("database cannot be used")),
        "{refused:?}"
    );
    table.held_for_all("create", "503, nothing is left of it");
    assert_eq!(served.api(KEY, "GET", "/v2/sandboxes", None).await.status, 200);
    table.held_for_all("list", "works");
    drop(other.stdin.take());
    other.wait().expect("it ends");
    let after = recover(&served).await;
    assert_eq!(run(&served, &before, "echo on").await, "on\n");
    table.held_for_all("create after the lock", "works without a restart");
    end_all(served, &[&before, &after]).await;
}

#[tokio::test]
async fn case_20_a_database_that_is_gone_comes_back_and_the_next_server_loses_nothing() {
    let served = Served::start();
    let table = Table::new("20 The database is gone");
    let before = served.create(json!({})).await.id;
    let database = served.state.path().join("isopod.db");
    for name in ["isopod.db", "isopod.db-wal", "isopod.db-shm"] {
        std::fs::remove_file(served.state.path().join(name)).expect("it is there");
    }
    let meanwhile = create(&served).await;
    assert_eq!(meanwhile.status, 201, "{meanwhile:?}");
    let meanwhile = meanwhile.json()["sandboxID"].as_str().expect("an id").to_owned();
    table.held_for_all("create while the file is gone", "works");
    for _ in 0..600 {
        if database.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(database.exists(), "the file is written again within the minute");
    let Served { state, server } = served;
    server.kill();
    let server = Served::serve(&state);
    let served = Served { state, server };
    for id in [&before, &meanwhile] {
        assert_eq!(run(&served, id, "echo on").await, "on\n");
    }
    table.held_for_all("kill -9 of the server after the file came back", "all are adopted");
    end_all(served, &[&before, &meanwhile]).await;
}
