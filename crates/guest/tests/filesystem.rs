//! The filesystem service and the sudo applet, tested with the real binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::Guest;
use serde_json::{Value, json};

fn call(guest: &Guest, method: &str, message: &Value) -> common::Reply {
    guest.call(&format!("filesystem.Filesystem/{method}"), message)
}

#[test]
fn missing_and_wrong_paths_are_refused_with_their_codes() {
    let guest = Guest::new();
    let file = guest.path("file");
    std::fs::write(&file, "x").unwrap();
    let code = |method: &str, path: &str| call(&guest, method, &json!({"path": path})).rpc_error().0;
    assert_eq!(code("Stat", "/no/such"), "not_found");
    assert_eq!(code("ListDir", "/no/such"), "not_found");
    assert_eq!(code("ListDir", file.to_str().unwrap()), "invalid_argument");
    assert_eq!(code("MakeDir", file.to_str().unwrap()), "invalid_argument");
    assert_eq!(code("MakeDir", "/tmp"), "already_exists");
    assert_eq!(code("CreateWatcher", "/no/such"), "not_found");
    assert_eq!(code("CreateWatcher", file.to_str().unwrap()), "invalid_argument");
    assert_eq!(code("Remove", "/"), "invalid_argument");
    assert_eq!(code("Remove", "/../tmp/.."), "invalid_argument");
    assert_eq!(code("Stat", &"x/".repeat(5000)), "invalid_argument");
    let move_missing = call(&guest, "Move", &json!({"source": "/no/such", "destination": guest.path("y")}));
    assert_eq!(move_missing.rpc_error().0, "not_found");
    let watcher = json!({"watcherId": "w1"});
    assert_eq!(
        call(&guest, "GetWatcherEvents", &watcher).rpc_error(),
        ("not_found".into(), "watcher with id w1 not found".into())
    );
    assert_eq!(call(&guest, "RemoveWatcher", &watcher).rpc_error().0, "not_found");
}

#[test]
fn directories_are_made_listed_moved_and_removed() {
    let guest = Guest::new();
    let (a, b) = (guest.path("d/a"), guest.path("e/b"));
    let made = call(&guest, "MakeDir", &json!({"path": a})).json();
    assert_eq!((&made["entry"]["type"], &made["entry"]["owner"]), (&json!("FILE_TYPE_DIRECTORY"), &json!("root")));
    std::fs::write(a.join("file"), "abc").unwrap();
    let moved = call(&guest, "Move", &json!({"source": a, "destination": b})).json();
    assert_eq!(moved["entry"]["path"], json!(b));
    let listed = call(&guest, "ListDir", &json!({"path": guest.path("e"), "depth": 2})).json();
    let names: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "file"]);
    assert_eq!(
        (&listed["entries"][1]["size"], &listed["entries"][1]["permissions"]),
        (&json!("3"), &json!("-rw-r--r--"))
    );
    for _ in 0..2 {
        assert_eq!(call(&guest, "Remove", &json!({"path": guest.path("e")})).status, 200);
    }
    assert!(!guest.path("e").exists());
}

/// A guest whose calls are for `nobody`, and a directory in one of nobody's that only root can enter.
fn guest_of_nobody() -> (Guest, PathBuf) {
    use std::os::unix::fs::{PermissionsExt, chown};
    let guest = Guest::bare(&[]);
    guest.init(&json!({"defaultUser": "nobody"}));
    let (home, roots) = (guest.path("home"), guest.path("home/of-root"));
    std::fs::create_dir_all(&roots).unwrap();
    chown(&home, Some(65534), Some(65534)).unwrap();
    std::fs::write(roots.join("file"), "of root").unwrap();
    for (path, mode) in [(&roots.join("file"), 0o600), (&roots, 0o700)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    (guest, roots)
}

fn upload(guest: &Guest, path: &Path, data: &[u8]) -> u16 {
    let octets = [("Content-Type", "application/octet-stream")];
    guest.request("POST", &format!("/files?path={}", path.display()), &octets, data).status
}

fn owner(path: &Path) -> u32 {
    std::os::unix::fs::MetadataExt::uid(&path.symlink_metadata().unwrap())
}

#[test]
fn no_call_is_refused_because_of_who_owns_a_file() {
    let (guest, roots) = guest_of_nobody();
    let (file, new) = (roots.join("file"), roots.join("made/new"));
    assert_eq!(guest.get(&format!("/files?path={}", file.display())).text(), "of root");
    let listed = call(&guest, "ListDir", &json!({"path": roots.parent(), "depth": 2})).json();
    assert_eq!(listed["entries"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(call(&guest, "Stat", &json!({"path": file})).json()["entry"]["owner"], "root");
    assert_eq!(upload(&guest, &new, b"x"), 200);
    assert_eq!(upload(&guest, &file, b"changed"), 200);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "changed");
    assert_eq!(call(&guest, "MakeDir", &json!({"path": roots.join("directory")})).status, 200);
    for path in [&file, &new, &roots.join("made"), &roots.join("directory")] {
        assert_eq!(owner(path), 65534, "{}", path.display());
    }
    assert_eq!(owner(&roots), 0);
    let composed = json!({"source_paths": [file, new], "destination": roots.join("both")}).to_string();
    let reply = guest.request("POST", "/files/compose", &[("Content-Type", "application/json")], composed.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(call(&guest, "Move", &json!({"source": roots.join("both"), "destination": file})).status, 200);
    assert_eq!(guest.get(&format!("/files/tree?path={}", roots.display())).json()["entries"][0][1], "file");
    assert_eq!(call(&guest, "Remove", &json!({"path": roots})).status, 200);
    assert!(!roots.exists());
}

#[test]
fn a_directory_of_root_is_watched_for_anyone() {
    let (guest, roots) = guest_of_nobody();
    let watcher = call(&guest, "CreateWatcher", &json!({"path": roots, "recursive": true, "includeEntry": true}));
    assert_eq!(watcher.status, 200, "{}", watcher.text());
    std::fs::create_dir(roots.join("later")).unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(roots.join("later"), permissions).unwrap();
    let watcher = watcher.json();
    assert_eq!(events(&guest, &watcher)[0], ("CREATE".to_owned(), "later".to_owned()));
    std::fs::write(roots.join("later/file"), "").unwrap();
    assert_eq!(events(&guest, &watcher)[0], ("CREATE".to_owned(), "later/file".to_owned()));
}

/// The kinds and names of the events that a watcher has now.
fn events(guest: &Guest, watcher: &Value) -> Vec<(String, String)> {
    let reply = call(guest, "GetWatcherEvents", watcher).json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let shown = |event: &Value| (text(&event["type"]).replace("EVENT_TYPE_", ""), text(&event["name"]));
    reply["events"].as_array().into_iter().flatten().map(shown).collect()
}

#[test]
fn a_new_file_gives_each_event_once_and_at_once() {
    let guest = Guest::new();
    let dir = guest.path("watched");
    std::fs::create_dir(&dir).unwrap();
    let watcher = call(&guest, "CreateWatcher", &json!({"path": dir})).json();
    for round in 0..100 {
        assert_eq!(upload(&guest, &dir.join(round.to_string()), b"text"), 200);
        let seen: Vec<_> = events(&guest, &watcher).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(seen, ["CREATE", "CHMOD", "WRITE"], "round {round}");
    }
    assert_eq!(upload(&guest, &dir.join("0"), b"other text"), 200);
    let seen: Vec<_> = events(&guest, &watcher).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(seen[0], "CHMOD");
    assert!(seen[1..].iter().all(|kind| kind == "WRITE") && seen.len() > 1, "{seen:?}");
    assert_eq!(upload(&guest, &dir.join("empty"), b""), 200);
    let seen: Vec<_> = events(&guest, &watcher).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(seen, ["CREATE", "CHMOD"]);
}

#[test]
fn a_directory_that_never_stops_changing_holds_no_poll_up() {
    let guest = Guest::new();
    let dir = guest.path("watched");
    std::fs::create_dir(&dir).unwrap();
    let watcher = call(&guest, "CreateWatcher", &json!({"path": dir})).json();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::write(dir.join("f"), "x").unwrap();
                std::fs::remove_file(dir.join("f")).unwrap();
            }
        });
        for _ in 0..20 {
            // A reply, whatever it says: the guest may not keep up with the changes.
            call(&guest, "GetWatcherEvents", &watcher);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_watch_streams_changes() {
    let guest = Guest::new();
    let dir = guest.path("watched");
    std::fs::create_dir(&dir).unwrap();
    let request = json!({"path": dir, "recursive": true, "includeEntry": true});
    let mut events = guest.stream("filesystem.Filesystem/WatchDir", &[("Keepalive-Ping-Interval", "1")], &request);
    assert_eq!(events.next().unwrap().1, json!({"start": {}}));
    assert_eq!(events.next().unwrap().1, json!({"keepalive": {}}));
    std::fs::create_dir(dir.join("sub")).unwrap();
    let created = events.next().unwrap().1;
    assert_eq!(
        (&created["filesystem"]["name"], &created["filesystem"]["type"]),
        (&json!("sub"), &json!("EVENT_TYPE_CREATE"))
    );
    assert_eq!(created["filesystem"]["entry"]["type"], "FILE_TYPE_DIRECTORY");
    std::fs::write(dir.join("sub/file"), "x").unwrap();
    let deep = events.next().unwrap().1;
    assert_eq!(deep["filesystem"]["name"], "sub/file");
}

#[test]
fn a_watcher_collects_events_until_it_is_polled() {
    let guest = Guest::new();
    let dir = guest.path("watched");
    std::fs::create_dir(&dir).unwrap();
    let watcher = call(&guest, "CreateWatcher", &json!({"path": dir})).json();
    std::fs::write(dir.join("x"), "1").unwrap();
    let mut names = Vec::new();
    common::wait_until(|| {
        let events = call(&guest, "GetWatcherEvents", &watcher).json();
        names.extend(events["events"].as_array().into_iter().flatten().map(|e| e["type"].as_str().unwrap().to_owned()));
        names.iter().any(|name| name == "EVENT_TYPE_WRITE")
    });
    assert_eq!(names[0], "EVENT_TYPE_CREATE");
    assert_eq!(call(&guest, "RemoveWatcher", &watcher).status, 200);
    assert_eq!(call(&guest, "RemoveWatcher", &watcher).status, 404);
}

#[test]
fn an_exchange_race_neither_crashes_nor_hangs() {
    let guest = Guest::new();
    let (file, dir) = (guest.path("f"), guest.path("d"));
    std::fs::write(&file, "x").unwrap();
    std::fs::create_dir(&dir).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let _ = rustix::fs::renameat_with(rustix::fs::CWD, &file, rustix::fs::CWD, &dir, flags);
            }
        });
        for _ in 0..100 {
            guest.get(&format!("/files?path={}", file.display()));
            let octets = [("Content-Type", "application/octet-stream")];
            guest.request("POST", &format!("/files?path={}", file.display()), &octets, b"y");
            call(&guest, "ListDir", &json!({"path": dir, "depth": 3}));
            call(&guest, "Remove", &json!({"path": guest.path("f/y")}));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(guest.get("/health").status, 204);
}

fn sudo(args: &[&str]) -> (String, String, Option<i32>) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_isopod-guest")).arg("sudo").args(args).env("SECRET", "x").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[test]
fn sudo_runs_commands_as_others() {
    assert_eq!(sudo(&["-u", "nobody", "id", "-un"]), ("nobody".into(), String::new(), Some(0)));
    assert_eq!(sudo(&["-nu", "#12345", "id", "-u"]).0, "12345");
    assert_eq!(
        sudo(&["A=1", "sh", "-c", "echo $A $SECRET $SUDO_USER $USER; exit 9"]),
        ("1 root root".into(), String::new(), Some(9))
    );
    assert_eq!(sudo(&["-E", "sh", "-c", "echo $SECRET"]).0, "x");
    assert_eq!(sudo(&["-i", "echo", "a  b"]).0, "a  b");
}

#[test]
fn sudo_refuses_like_sudo() {
    assert_eq!(sudo(&["no-such-command"]), (String::new(), "sudo: no-such-command: command not found".into(), Some(1)));
    assert_eq!(sudo(&["-u", "ghost", "id"]), (String::new(), "sudo: unknown user ghost".into(), Some(1)));
    assert_eq!(sudo(&["-g", "ghosts", "id"]).1, "sudo: unknown group ghosts");
    assert!(sudo(&["-z"]).1.starts_with("sudo: invalid option -- 'z'"));
    assert_eq!(sudo(&["-k"]).2, Some(0));
}

#[test]
fn sudo_is_not_for_everyone() {
    use std::os::unix::process::CommandExt;
    let dir =
        tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let program = dir.path().join("sudo");
    std::fs::copy(env!("CARGO_BIN_EXE_isopod-guest"), &program).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let run = |uid: u32| Command::new(&program).args(["id", "-u"]).uid(uid).gid(uid).output().unwrap();
    let refused = run(65534);
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "sudo: nobody is not in the sudoers file\n");
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&run(1000).stdout), "0\n");
}
