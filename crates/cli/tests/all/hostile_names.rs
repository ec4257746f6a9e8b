//! What sandboxes and stores choose (names, metadata, log lines, words of errors) on a person's terminal: it is shown, and
//! steers nothing.

use crate::pty;
use crate::served;

use std::io::{Read as _, Write as _};
use std::process::Command;

use isopod_testkit::StateDir;
use pty::Terminal;
use serde_json::Value;
use served::{BINARY, Served};

/// Names the window, clears the screen in two ways, turns letters around, hides one, and begins a line of its own.
const HOSTILE: &str = "a\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\u{202e}gpj\u{2066}\u{200b}b\nforged: line";

/// What a terminal gets, which must be safe and must say that the name is there.
#[track_caller]
fn seen_on_a_terminal(mut command: Command) -> String {
    let mut terminal = Terminal::new(50, 400);
    let mut child = terminal.spawn(&mut command);
    // It holds the other end of the terminal, too.
    drop(command);
    terminal.watch(&mut child);
    let seen = terminal.seen;
    let is_unsafe = |character: char| {
        let is_line_break = matches!(character, '\r' | '\n');
        (character.is_control() && !is_line_break) || matches!(character, '\u{202e}' | '\u{2066}' | '\u{200b}')
    };
    let found: Vec<char> = seen.chars().filter(|character| is_unsafe(*character)).collect();
    assert!(found.is_empty(), "{found:?} in {seen:?}");
    assert!(!seen.lines().any(|line| line.starts_with("forged")), "a line of its own: {seen:?}");
    seen
}

#[track_caller]
fn shows_the_name(command: Command) {
    let seen = seen_on_a_terminal(command);
    assert!(seen.contains("owned") && seen.contains("forged: line"), "the name is not in {seen:?}");
}

#[test]
fn names_metadata_logs_and_errors_of_sandboxes_cannot_steer_a_terminal() {
    let state = StateDir::new(BINARY);
    let server = Served::start(&state, &["--listen", "127.0.0.1:0", "--prepare", "none"]);
    let metadata = format!("who={HOSTILE}");
    let id = server.create(&["--metadata", &metadata]);
    shows_the_name(server.command(&["ls"]));
    shows_the_name(server.command(&["info", &id]));
    for verb in [vec!["ls", "--json"], vec!["info", "--json", &id]] {
        shows_the_name(server.command(&verb));
        let value: Value = serde_json::from_str(&server.run(&verb).ok()).unwrap();
        let detail = value.get(0).unwrap_or(&value);
        assert_eq!(detail["metadata"]["who"], HOSTILE, "JSON says what is so");
    }

    // What a program printed for the person who ran it goes out as it is; in the log it is somebody's words.
    let printed = server.run(&["exec", &id, "--", "printf", "%s", HOSTILE]).ok();
    assert_eq!(printed, HOSTILE);
    let is_logged = || server.run(&["logs", &id]).ok().contains("owned");
    while !is_logged() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(seen_on_a_terminal(server.command(&["logs", &id])).contains("owned"));
    assert!(seen_on_a_terminal(server.command(&["logs", "--json", &id])).contains("owned"));

    let inside = format!("/tmp/odd/{HOSTILE}");
    server.run(&["exec", &id, "--", "sh", "-c", "mkdir /tmp/odd && ln -s / \"$0\"", &inside]).ok();
    let here = tempfile::tempdir().unwrap();
    let to = here.path().join("copy").display().to_string();
    shows_the_name(server.command(&["cp", &format!("{id}:/tmp/odd"), &to]));
    shows_the_name(server.command(&["cp", &format!("{id}:{inside}/missing"), &to]));
    shows_the_name(server.command(&["exec", &id, "--", HOSTILE]));
    server.run(&["kill", "--all"]).ok();
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn names_in_the_workspace_cannot_steer_a_terminal() {
    let state = StateDir::new(BINARY);
    let places = tempfile::tempdir().unwrap();
    let storage = |arguments: &[&str]| {
        let mut command = state.isopod().command(&[&["storage"], arguments].concat());
        command.env("ISOPOD_STORAGE", format!("dir:{}", places.path().join("bucket").display()));
        command.env("STORAGE_BASE_PATH", places.path().join("base"));
        command
    };
    assert!(storage(&["mount"]).output().unwrap().status.success());
    let directory = places.path().join("base/executions/run");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join(HOSTILE), "x").unwrap();
    shows_the_name(storage(&["ls", "executions/run"]));
    shows_the_name(storage(&["du", "executions/run"]));
    for verb in ["ls", "du"] {
        shows_the_name(storage(&[verb, &format!("executions/{HOSTILE}")]));
    }
    shows_the_name(storage(&["cp", &format!("store:executions/{HOSTILE}"), "/tmp"]));
    shows_the_name(storage(&["umount", places.path().join(HOSTILE).to_str().unwrap()]));
    let stopped = storage(&["stop"]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    state.assert_nothing_left();
}

/// A store that holds nothing, and refuses what is written with a word of its choice.
fn refusing_store() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 16 << 10];
            let length = stream.read(&mut request).unwrap_or(0);
            let (status, body) = match request[..length].starts_with(b"GET") {
                true => ("200 OK", "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>".to_owned()),
                false => ("400 Bad Request", format!("<Error><Code>{HOSTILE}</Code></Error>")),
            };
            let length = body.len();
            let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        }
    });
    format!("http://{address}")
}

#[test]
fn what_a_store_says_cannot_steer_the_terminal_of_who_reads_the_log() {
    let state = StateDir::new(BINARY);
    let places = tempfile::tempdir().unwrap();
    let store = refusing_store();
    let storage = |arguments: &[&str]| {
        let mut command = state.isopod().command(&[&["storage"], arguments].concat());
        command.envs([("ROMA_S3_BUCKET", "bucket"), ("AWS_ENDPOINT_URL", &store)]);
        command.envs([("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
        command.env("STORAGE_BASE_PATH", places.path().join("base"));
        command
    };
    let mounted = storage(&["mount"]).output().unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    let directory = places.path().join("base/executions/run");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("file"), "x").unwrap();
    let log = state.path().join("storage/daemon.log");
    while !std::fs::read_to_string(&log).unwrap().contains("owned") {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let mut cat = Command::new("cat");
    cat.arg(&log);
    shows_the_name(cat);
    let stopped = storage(&["stop", "--force"]).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    state.assert_nothing_left();
}
