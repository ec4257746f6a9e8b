//! Checkpoints, tested with the real binary: what waits while a sandbox is held, what its state has, and that it goes on after
//! that as if nothing had happened.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use base64::Engine;
use common::interpreter::Sandbox;
use common::{Guest, Reply, shell, wait_until};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

const HOST: [(&str, &str); 1] = [("X-Isopod-Control", "1")];
const SOON: Duration = Duration::from_millis(300);

fn post(guest: &Guest, path: &str) -> Reply {
    guest.request("POST", path, &HOST, b"")
}

fn hold(guest: &Guest) -> Value {
    let reply = post(guest, "/checkpoint/hold");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn state(guest: &Guest) -> Value {
    let reply = post(guest, "/checkpoint/state");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn release(guest: &Guest) {
    let reply = post(guest, "/checkpoint/release");
    assert_eq!(reply.status, 204, "{}", reply.text());
}

fn signal(pid: u64, signal: Signal) {
    rustix::process::kill_process_group(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// As the host does before it takes the state.
fn stop(pid: u64) {
    signal(pid, Signal::STOP);
    wait_until(|| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T "));
}

fn decode(text: &Value) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap()
}

/// The undelivered output of the only process.
fn undelivered(state: &Value) -> Vec<u8> {
    let process = &state["processes"]["live"][0];
    process["output"].as_array().unwrap().iter().flat_map(|piece| decode(&piece["data"])).collect()
}

fn cat() -> Value {
    json!({"process": {"cmd": "/bin/cat"}, "stdin": true, "tag": "cat"})
}

fn input(pid: u64, text: &str) -> Value {
    let text = base64::engine::general_purpose::STANDARD.encode(text);
    json!({"process": {"pid": pid}, "input": {"stdin": text}})
}

/// The pipes and sockets in which a process's descriptors lead elsewhere, as the guest names them.
fn pipe_of(pid: u64, number: u32) -> Value {
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap();
    let link = link.to_str().unwrap();
    let inode = link.trim_start_matches("pipe:[").trim_end_matches(']');
    json!({"kind": "pipe", "inode": inode.parse::<u64>().unwrap()})
}

#[test]
fn only_the_host_makes_checkpoints_and_only_in_order() {
    let guest = Guest::new();
    for path in ["/checkpoint/hold", "/checkpoint/state", "/checkpoint/release", "/restore", "/restore/finish"] {
        assert_eq!(guest.request("POST", path, &[], b"").status, 404, "{path}");
        assert_eq!(guest.request("DELETE", path, &HOST, b"").status, 405, "{path}");
    }
    for path in ["/checkpoint/state", "/checkpoint/release", "/restore/finish"] {
        assert_eq!(post(&guest, path).status, 409, "{path}");
    }
    assert_eq!(guest.request("GET", "/checkpoint/files", &HOST, b"").status, 409);
    hold(&guest);
    assert_eq!(post(&guest, "/checkpoint/hold").error(), (409, "the sandbox is held already".to_owned()));
    assert_eq!(post(&guest, "/restore").status, 409);
    assert_eq!(guest.request("PUT", "/restore/files", &HOST, b"").status, 409);
    release(&guest);
    assert_eq!(post(&guest, "/checkpoint/release").status, 409);
    hold(&guest);
}

#[test]
fn the_root_is_nobodys_process_and_ends_with_the_hold() {
    let guest = Guest::new();
    for _ in 0..2 {
        let root = hold(&guest)["root"].as_u64().unwrap();
        let program = std::fs::read_link(format!("/proc/{root}/exe")).unwrap();
        assert!(program.starts_with("/run/"), "{}", program.display());
        let meta = std::fs::metadata(&program).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o700));
        assert!(guest.call("process.Process/List", &json!({})).json().get("processes").is_none());
        // Whoever kills it, it leaves no zombie.
        release(&guest);
        wait_until(|| !std::path::Path::new(&format!("/proc/{root}")).exists());
        assert!(!program.exists());
    }
}

#[test]
fn a_command_waits_until_the_release_and_then_runs() {
    let guest = Guest::new();
    hold(&guest);
    let marker = guest.path("marker");
    std::thread::scope(|scope| {
        let command = scope.spawn(|| guest.run(&format!("touch {}; echo done", marker.display())));
        std::thread::sleep(SOON);
        assert!(!marker.exists() && !command.is_finished());
        release(&guest);
        assert_eq!(command.join().unwrap().text(), "done\n");
    });
}

#[test]
fn signals_and_deadlines_wait_too() {
    let guest = Guest::new();
    let mut events = guest.stream("process.Process/Start", &[("Connect-Timeout-Ms", "500")], &shell("sleep 60"));
    let pid = events.pid();
    hold(&guest);
    std::thread::scope(|scope| {
        let kill = scope.spawn(|| {
            let request = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGTERM"});
            guest.call("process.Process/SendSignal", &request)
        });
        std::thread::sleep(Duration::from_secs(1));
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists() && !kill.is_finished());
        release(&guest);
        kill.join().unwrap();
    });
    wait_until(|| !std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn output_is_neither_lost_nor_repeated() {
    let guest = Guest::new();
    // A shell would be in `vfork` now and then, where it does not stop.
    let script = "
import time
for number in range(10_000, 25_100):
    print(number, flush=True)
    if number % 100 == 0: time.sleep(0.01)";
    let request = json!({"process": {"cmd": "python3", "args": ["-c", script]}, "stdin": false});
    let mut events = guest.stream("process.Process/Start", &[], &request);
    let pid = events.pid();
    for _ in 0..20 {
        hold(&guest);
        stop(pid);
        state(&guest);
        signal(pid, Signal::CONT);
        release(&guest);
    }
    let outcome = events.finish();
    let expected: String = (10_000..25_100).map(|number| format!("{number}\n")).collect();
    assert!(outcome.text() == expected, "{} bytes instead of {}", outcome.stdout.len(), expected.len());
}

#[test]
fn the_state_has_what_a_slow_client_has_not_got_and_the_client_still_gets_it() {
    let guest = Guest::new();
    // More than the ring, the connection and the client's buffer hold.
    let request = json!({"process": {"cmd": "seq", "args": ["1", "2000000"]}, "stdin": false});
    let mut events = guest.stream("process.Process/Start", &[], &request);
    let pid = events.pid();
    // It waits in `write`.
    let waits = || std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap().starts_with("1 ");
    wait_until(|| {
        waits() && {
            std::thread::sleep(SOON);
            waits()
        }
    });
    hold(&guest);
    stop(pid);
    let saved = undelivered(&state(&guest));
    // Nothing changes by asking again.
    assert!(undelivered(&state(&guest)) == saved);
    assert!(saved.len() >= (1 << 20), "{}", saved.len());
    signal(pid, Signal::CONT);
    release(&guest);
    let outcome = events.finish();
    let expected: String = (1..=2_000_000).map(|number| format!("{number}\n")).collect();
    assert!(outcome.text() == expected);
    let at = expected.find(std::str::from_utf8(&saved).unwrap());
    assert!(at.is_some(), "the state has something else than the client");
}

#[test]
fn unread_input_is_saved_and_stays_in_its_order() {
    let guest = Guest::new();
    let mut events = guest.stream("process.Process/Start", &[], &cat());
    let pid = events.pid();
    stop(pid);
    assert_eq!(guest.call("process.Process/SendInput", &input(pid, "first ")).status, 200);
    let connections = hold(&guest)["connections"].clone();
    for number in 0..3 {
        assert!(connections.as_array().unwrap().contains(&pipe_of(pid, number)), "{number}: {connections}");
    }
    std::thread::scope(|scope| {
        let second = scope.spawn(|| guest.call("process.Process/SendInput", &input(pid, "second ")));
        let state = state(&guest);
        let process = &state["processes"]["live"][0];
        let stdin = &process["streams"]["pipes"]["stdin"];
        assert_eq!((decode(&stdin["unread"]).as_slice(), &stdin["connection"]), (&b"first "[..], &pipe_of(pid, 0)));
        assert_eq!(process["streams"]["pipes"]["stderr"], pipe_of(pid, 2));
        assert_eq!((&process["pid"], &process["tag"], &state["version"]), (&json!(pid), &json!("cat"), &json!(1)));
        assert_eq!(process["remaining_ms"], json!(null));
        std::thread::sleep(SOON);
        assert!(!second.is_finished());
        signal(pid, Signal::CONT);
        release(&guest);
        assert_eq!(second.join().unwrap().status, 200);
    });
    guest.call("process.Process/CloseStdin", &json!({"process": {"pid": pid}}));
    assert_eq!(events.finish().text(), "first second ");
}

#[test]
fn a_full_input_is_saved_and_goes_on_where_it_was() {
    let guest = Guest::new();
    let mut events = guest.stream("process.Process/Start", &[], &cat());
    let pid = events.pid();
    stop(pid);
    let text: String = (0..40_000).map(|number| format!("{number} ")).collect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| guest.call("process.Process/SendInput", &input(pid, &text)));
        std::thread::sleep(SOON);
        hold(&guest);
        let state = state(&guest);
        let unread = decode(&state["processes"]["live"][0]["streams"]["pipes"]["stdin"]["unread"]);
        assert!(unread.len() == 64 << 10 && text.as_bytes().starts_with(&unread), "{}", unread.len());
        signal(pid, Signal::CONT);
        release(&guest);
        assert_eq!(writer.join().unwrap().status, 200);
    });
    guest.call("process.Process/CloseStdin", &json!({"process": {"pid": pid}}));
    assert!(events.finish().text() == text);
}

#[test]
fn the_state_has_ended_processes_terminals_leftovers_and_watchers() {
    let guest = Guest::new();
    let go = guest.path("go");
    let script = format!("while ! test -e {}; do sleep 0.05; done; echo unread; (sleep 60) & exit 3", go.display());
    guest.start(&script).pid();
    std::fs::write(&go, "").unwrap();
    wait_until(|| guest.call("process.Process/List", &json!({})).json().get("processes").is_none());
    let mut request = shell("sleep 60");
    request["pty"] = json!({"size": {"cols": 97, "rows": 31}});
    let mut events = guest.stream("process.Process/Start", &[], &request);
    let pid = events.pid();
    let watched = json!({"path": guest.dir.path(), "recursive": true});
    let watcher = guest.call("filesystem.Filesystem/CreateWatcher", &watched).json()["watcherId"].clone();
    let connections = hold(&guest)["connections"].clone();
    let state = state(&guest);
    let terminal = &state["processes"]["live"][0]["streams"]["terminal"];
    let device = std::fs::metadata(format!("/proc/{pid}/fd/0")).unwrap();
    let expected = json!({"kind": "terminal", "device": device.rdev(), "file_system": device.dev()});
    assert_eq!((&terminal["connection"], &terminal["columns"], &terminal["rows"]), (&expected, &json!(97), &json!(31)));
    assert!(connections.as_array().unwrap().contains(&expected));
    let ended = &state["processes"]["ended"][0];
    assert_eq!(ended["ending"]["exited"]["exitCode"], 3);
    assert_eq!(decode(&ended["output"][0]["data"]), b"unread\n");
    let leftovers = state["processes"]["leftovers"].as_array().unwrap();
    assert_eq!(leftovers.len(), 2, "{leftovers:?}");
    assert!(leftovers.iter().all(|leftover| connections.as_array().unwrap().contains(&leftover["connection"])));
    assert_eq!(state["watchers"][0]["id"], watcher);
}

#[test]
fn states_that_are_invalid_change_nothing() {
    let guest = Guest::new();
    let root = "0123456789abcdef";
    let live = |pid: u32| {
        json!({"pid": pid, "config": {"cmd": "x"}, "output": [], "streams": {"pipes":
            {"stdout": {"kind": "pipe", "inode": 1}, "stderr": {"kind": "pipe", "inode": 2}}}})
    };
    let invalid = [
        json!("text"),
        json!({}),
        json!({"version": 2, "root": root}),
        json!({"version": 1, "root": "../../etc/passwd"}),
        json!({"version": 1, "root": root, "processes": {"live": [{}]}}),
        json!({"version": 1, "root": root, "processes": {"live": [live(0)]}}),
        json!({"version": 1, "root": root, "processes": {"live": [live(1)]}}),
        json!({"version": 1, "root": root, "processes": {"live": [live(u32::MAX)]}}),
        json!({"version": 1, "root": root, "contexts": {"ever_created": ["python"]}}),
    ];
    for state in invalid {
        let reply = guest.request("POST", "/restore", &HOST, state.to_string().as_bytes());
        assert_eq!(reply.status, 400, "{state}: {}", reply.text());
        assert_eq!(post(&guest, "/restore/finish").status, 409, "{state}");
        assert!(!std::path::Path::new(&format!("/run/isopod-checkpoint-root-{root}")).exists());
    }
    assert_eq!(guest.run("echo works").text(), "works\n");
    let reply = guest.request("POST", "/restore", &HOST, json!({"version": 1, "root": root}).to_string().as_bytes());
    assert_eq!(reply.error(), (409, "the sandbox is in use: only a new one can be restored".to_owned()));
}

#[test]
fn a_kernel_outlives_its_forkserver_and_the_next_context_gets_a_new_one() {
    let sandbox = Sandbox::new();
    sandbox.run("x = 41");
    let first = sandbox.processes("mother");
    let held = hold(&sandbox.guest);
    assert_eq!(held["connections"].as_array().unwrap().len(), 3, "{held}");
    assert!(sandbox.processes("mother --fd").iter().all(|pid| !first.contains(pid) || is_kernel(&sandbox, pid)));
    let state = state(&sandbox.guest);
    let context = &state["contexts"]["all"][0];
    assert_eq!((&context["language"], &context["kernel"]["kind"]), (&json!("python"), &json!("forked")));
    assert_eq!((&context["kernel"]["begun"], &context["kernel"]["in_cell"]), (&json!(true), &json!(false)));
    assert_eq!(state["contexts"]["defaults"]["python"], context["id"]);
    std::thread::scope(|scope| {
        let cell = scope.spawn(|| sandbox.run("x + 1"));
        std::thread::sleep(SOON);
        assert!(!cell.is_finished());
        release(&sandbox.guest);
        assert_eq!(cell.join().unwrap().value(), "42");
    });
    let id = sandbox.create(&json!({}));
    assert_eq!(sandbox.run_in(&id, "1 + 1").value(), "2");
    // The guest reaps the first kernel now and still knows how it ended.
    let died = sandbox.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)");
    assert!(died.failure().1.contains("signal 9"), "{died:?}");
}

fn is_kernel(sandbox: &Sandbox, pid: &str) -> bool {
    state(&sandbox.guest)["contexts"]["all"]
        .as_array()
        .unwrap()
        .iter()
        .any(|context| context["kernel"]["pid"].as_u64().is_some_and(|kernel| kernel.to_string() == *pid))
}

#[test]
fn a_running_cell_loses_nothing_and_the_state_says_that_it_runs() {
    let sandbox = Sandbox::new();
    let code = "
import os, time
print(os.getpid(), flush=True); time.sleep(0.3)
for number in range(300): print(number, flush=True); time.sleep(0.005)
'end'";
    let mut cell = sandbox.start(&json!({"code": code}));
    let pid = cell.printed().trim().to_owned();
    for _ in 0..10 {
        hold(&sandbox.guest);
        sandbox.signal(&pid, Signal::STOP);
        let kernel = state(&sandbox.guest)["contexts"]["all"][0]["kernel"].clone();
        assert_eq!((&kernel["in_cell"], kernel["pid"].to_string()), (&json!(true), pid.clone()));
        sandbox.signal(&pid, Signal::CONT);
        release(&sandbox.guest);
    }
    let executed = cell.finish();
    let expected: String = (0..300).map(|number| format!("{number}\n")).collect();
    assert_eq!((executed.stdout.as_str(), executed.value()), (expected.as_str(), "end"));
    hold(&sandbox.guest);
    assert_eq!(state(&sandbox.guest)["contexts"]["all"][0]["kernel"]["in_cell"], false);
}

#[test]
fn a_stopped_kernel_is_not_resumed_while_the_sandbox_is_held() {
    let sandbox = Sandbox::new();
    let mut cell = sandbox.start(&json!({"code": "import os, time; print(os.getpid(), flush=True); time.sleep(1)"}));
    let pid = cell.printed().trim().to_owned();
    hold(&sandbox.guest);
    sandbox.signal(&pid, Signal::STOP);
    // The guest looks every second for kernels that have stopped themselves.
    std::thread::sleep(Duration::from_millis(2500));
    let kernel = sandbox.processes("").into_iter().find(|process| *process == pid);
    assert!(kernel.is_some());
    assert!(sandbox.read(&format!("/proc/{pid}/stat")).contains(") T "));
    release(&sandbox.guest);
    assert!(cell.finish().error.is_none());
}

#[test]
fn a_kernel_that_has_not_read_its_command_is_busy() {
    let bridge = r#"
import json, os, socket, sys, time
if sys.argv[1] == 'kernels':
    print(json.dumps([{'name': 'ir', 'language': 'R'}]))
    sys.exit()
stream = socket.socket(fileno=3).makefile('w')
stream.write(json.dumps({'type': 'hello', 'pid': os.getpid()}) + '\n')
stream.flush()
time.sleep(1000)
"#;
    let sandbox = Sandbox::scripted(bridge);
    let id = sandbox.create(&json!({"language": "r"}));
    hold(&sandbox.guest);
    release(&sandbox.guest);
    let _cell = sandbox.start(&json!({"code": "1", "context_id": id}));
    let reply = post(&sandbox.guest, "/checkpoint/hold");
    assert_eq!(reply.error(), (409, "busy: a kernel has not read its last command yet".to_owned()));
    // Nothing is held by that.
    assert_eq!(
        sandbox.guest.stream("process.Process/Start", &[], &root_shell("echo works")).finish().text(),
        "works\n"
    );
}

fn root_shell(script: &str) -> Value {
    let mut request = shell(script);
    request["process"]["cwd"] = json!("/");
    request
}

/// Gives the guest its own memory in the three directories. The directory of its socket stays where it is.
const MEMORY: &str = r#"
set -e
for argument; do
    if test "$previous" = --listen-path; then directory=$(dirname "$argument"); fi
    previous=$argument
done
mkdir -p "$directory"
cd "$directory"
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir -p "$directory"
mount -c --bind . "$directory"
cd /
exec "$@"
"#;

fn guest_with_memory() -> Guest {
    let guest = Guest::bare(&["unshare", "--mount", "sh", "-c", MEMORY, "sh"]);
    guest.init(&json!({"defaultUser": "root"}));
    guest
}

#[test]
fn files_in_memory_come_back_in_another_sandbox() {
    let (first, second) = (guest_with_memory(), guest_with_memory());
    let make = "
umask 022; cd /tmp; mkdir -p d/e; echo text > d/e/file; ln d/e/file second; ln -s d/e link; mkfifo -m 600 fifo
chown 1000:1000 d/e/file; chmod 4755 d/e/file; touch -d 2001-02-03 d/e/file d/e d; chmod 700 /tmp
truncate -s 10G /dev/shm/sparse; printf x | dd of=/dev/shm/sparse bs=1 seek=5000000000 conv=notrunc 2>/dev/null
echo pid > /run/pid; head -c 3000000 /dev/urandom > /run/large";
    assert_eq!(first.run(make).end["exitCode"], json!(null));
    let show = "
cd /; stat -c '%n %A %u %g %s %Y %h' /tmp /tmp/d /tmp/d/e /tmp/d/e/file /tmp/second /dev/shm/sparse
stat -c '%n %A %N' /tmp/link /tmp/fifo; cat /tmp/second /run/pid; sha256sum < /run/large
tail -c +5000000001 /dev/shm/sparse | head -c 1 | od -c; du -k /dev/shm/sparse; find /tmp /run /dev/shm -xdev | sort | grep -v root";
    let expected = first.run(show).text();
    hold(&first);
    let files = first.request("GET", "/checkpoint/files", &HOST, b"");
    assert_eq!(files.status, 200);
    assert!(files.body.len() < 4_000_000, "{}", files.body.len());
    assert_eq!(second.run("echo old > /run/pid; mkdir /tmp/link").end["exitCode"], json!(null));
    let restored = second.request("PUT", "/restore/files", &HOST, &files.body);
    assert_eq!(restored.status, 204, "{}", restored.text());
    let own = |guest: &Guest, text: &str| text.replace(guest.dir.path().to_str().unwrap(), "SOCKET");
    let found = second.run(show).text();
    assert_eq!(own(&second, &found), own(&first, &expected));
    let cut = second.request("PUT", "/restore/files", &HOST, &files.body[..files.body.len() - 1]);
    assert_eq!(cut.status, 400, "{}", cut.text());
}

#[test]
fn what_is_on_disk_is_not_saved() {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(disk.path().join("file"), "on disk").unwrap();
    let bind = format!("mount --bind {} /dev/shm", disk.path().display());
    let script = MEMORY.replace("mount -t tmpfs tmpfs /dev/shm", &bind);
    let guest = Guest::bare(&["unshare", "--mount", "sh", "-c", &script, "sh"]);
    guest.init(&json!({"defaultUser": "root"}));
    guest.run("echo in memory > /run/file");
    hold(&guest);
    let files = guest.request("GET", "/checkpoint/files", &HOST, b"").body;
    let text = String::from_utf8_lossy(&files);
    assert!(text.contains("in memory") && !text.contains("on disk"));
}
