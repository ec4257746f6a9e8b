//! Restores, tested with two guests. No CRIU is needed: a process that takes the new guest's ends with `pidfd_getfd` and then
//! runs a program is, for the guest, the same as a restored one.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use base64::Engine;
use common::interpreter::Sandbox;
use common::{Guest, shell, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

const HOST: [(&str, &str); 1] = [("X-Isopod-Control", "1")];

/// Becomes a child of the guest, says its pid, and waits for an order: which descriptors of the guest to take, and what to run.
const STAND_IN: &str = r#"
import ctypes, json, os, sys
if os.fork():
    os._exit(0)
os.setsid()
print(os.getpid(), flush=True)
order = json.loads(sys.stdin.readline())
guest, taken = os.pidfd_open(1), {}
for target, source in order["descriptors"].items():
    fd = ctypes.CDLL(None).syscall(438, guest, source, 0)
    assert fd >= 0
    taken[int(target)] = os.dup2(fd, 100 + int(target))
for target, fd in taken.items():
    os.dup2(fd, target)
os.closerange(100, 200)
if 0 not in taken:
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
os.execv(order["program"][0], order["program"])
"#;

/// A process that waits to become a restored one.
struct StandIn {
    pid: u64,
    child: Child,
    said: BufReader<ChildStdout>,
}

impl StandIn {
    fn new(sandbox: &Sandbox) -> Self {
        let mut command = Command::new("nsenter");
        command.args(["-t", &sandbox.guest_pid(), "-p", "-m", "-n", "python3", "-c", STAND_IN]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        Self { pid: line.trim().parse().unwrap(), child, said }
    }

    /// Returns when the process has taken its descriptors.
    fn run(mut self, descriptors: Value, program: &[&str]) {
        let order = json!({"descriptors": descriptors, "program": program});
        writeln!(self.child.stdin.take().unwrap(), "{order}").unwrap();
        self.said.read_to_end(&mut Vec::new()).unwrap();
        self.child.wait().unwrap();
    }
}

/// The reply to a restore: where the new end of each connection is.
struct Ends(Vec<Value>);

impl Ends {
    fn fd(&self, connection: &Value) -> i64 {
        let found = self.0.iter().find(|end| end["connection"] == *connection);
        found.unwrap_or_else(|| panic!("no {connection} in {:?}", self.0))["fd"].as_i64().unwrap()
    }
}

fn checkpoint(guest: &Guest) -> Value {
    assert_eq!(guest.request("POST", "/checkpoint/hold", &HOST, b"").status, 200);
    let reply = guest.request("POST", "/checkpoint/state", &HOST, b"");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn restore(sandbox: &Sandbox, state: &Value) -> Ends {
    let reply = sandbox.guest.request("POST", "/restore", &HOST, state.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    Ends(reply.json()["connections"].as_array().unwrap().clone())
}

fn finish(sandbox: &Sandbox) {
    let reply = sandbox.guest.request("POST", "/restore/finish", &HOST, b"");
    assert_eq!(reply.status, 204, "{}", reply.text());
}

fn input(process: &Value, kind: &str, text: &str) -> Value {
    let text = base64::engine::general_purpose::STANDARD.encode(text);
    json!({"process": process, "input": {kind: text}})
}

fn connect(guest: &Guest, process: &Value) -> common::Events {
    guest.stream("process.Process/Connect", &[], &json!({"process": process}))
}

#[test]
fn a_process_goes_on_for_its_clients() {
    let (first, second) = (Guest::new(), Sandbox::new());
    let start = json!({"process": {"cmd": "/bin/cat", "envs": {"A": "1"}}, "stdin": true, "tag": "cat"});
    let mut events = first.stream("process.Process/Start", &[("Connect-Timeout-Ms", "60000")], &start);
    let by_pid = json!({"pid": events.pid()});
    drop(events);
    first.call("process.Process/SendInput", &input(&by_pid, "stdin", "printed before\n"));
    wait_until(|| first.request("GET", "/logs?after=0", &HOST, b"").text().contains("printed before"));
    rustix::process::kill_process(pid(&by_pid), Signal::STOP).unwrap();
    wait_until(|| std::fs::read_to_string(format!("/proc/{}/stat", by_pid["pid"])).unwrap().contains(") T "));
    first.call("process.Process/SendInput", &input(&by_pid, "stdin", "not read\n"));
    let mut state = checkpoint(&first);
    let remaining = state["processes"]["live"][0]["remaining_ms"].as_u64().unwrap();
    assert!((30_000..60_000).contains(&remaining), "{remaining}");

    let cat = StandIn::new(&second);
    state["processes"]["live"][0]["pid"] = json!(cat.pid);
    let ends = restore(&second, &state);
    let again = second.guest.request("POST", "/restore", &HOST, state.to_string().as_bytes());
    assert_eq!(again.status, 409);
    let pipes = state["processes"]["live"][0]["streams"]["pipes"].clone();
    let descriptors = json!({
        "0": ends.fd(&pipes["stdin"]["connection"]), "1": ends.fd(&pipes["stdout"]), "2": ends.fd(&pipes["stderr"]),
    });
    let pid = cat.pid;
    cat.run(descriptors, &["/bin/cat"]);
    finish(&second);
    assert_eq!(second.guest.request("POST", "/restore/finish", &HOST, b"").status, 409);

    let guest = &second.guest;
    let listed = guest.call("process.Process/List", &json!({})).json();
    let expected = json!({"config": {"cmd": "/bin/cat", "envs": {"A": "1"}}, "pid": pid, "tag": "cat"});
    assert_eq!(listed["processes"], json!([expected]));
    let events = connect(guest, &json!({"tag": "cat"}));
    let by_pid = json!({"pid": pid});
    assert_eq!(guest.call("process.Process/SendInput", &input(&by_pid, "stdin", "after\n")).status, 200);
    assert_eq!(guest.call("process.Process/CloseStdin", &json!({"process": by_pid})).status, 200);
    let outcome = events.finish();
    assert_eq!(outcome.text(), "printed before\nnot read\nafter\n");
    assert_eq!((outcome.pid, &outcome.end["status"]), (pid, &json!("exit status 0")));
    // The sandbox works like any other.
    assert_eq!(guest.stream("process.Process/Start", &[], &shell("echo new")).finish().text(), "new\n");
}

fn pid(process: &Value) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(i32::try_from(process["pid"].as_u64().unwrap()).unwrap()).unwrap()
}

#[test]
fn a_terminal_has_its_size_and_can_be_resized_and_killed() {
    let (first, second) = (Guest::new(), Sandbox::new());
    let mut start = shell("sleep 60");
    start["pty"] = json!({"size": {"cols": 97, "rows": 31}});
    let mut events = first.stream("process.Process/Start", &[], &start);
    events.pid();
    let mut state = checkpoint(&first);
    let shell = StandIn::new(&second);
    let by_pid = json!({"pid": shell.pid});
    state["processes"]["live"][0]["pid"] = json!(shell.pid);
    let ends = restore(&second, &state);
    let fd = ends.fd(&state["processes"]["live"][0]["streams"]["terminal"]["connection"]);
    let script = "stty size; while read line; do stty size; echo got $line; done";
    shell.run(json!({"0": fd, "1": fd, "2": fd}), &["/bin/sh", "-c", script]);
    finish(&second);
    let guest = &second.guest;
    let mut events = connect(guest, &by_pid);
    let mut shown = String::new();
    let mut show_until = |events: &mut common::Events, wanted: &str| {
        while !shown.contains(wanted) {
            let (_, message) = events.next().unwrap();
            if let Some(text) = message["event"]["data"]["pty"].as_str() {
                shown += &String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap();
            }
        }
    };
    show_until(&mut events, "31 97");
    let resize = json!({"process": by_pid, "pty": {"size": {"cols": 50, "rows": 20}}});
    assert_eq!(guest.call("process.Process/Update", &resize).status, 200);
    assert_eq!(guest.call("process.Process/SendInput", &input(&by_pid, "pty", "hello\n")).status, 200);
    show_until(&mut events, "20 50");
    show_until(&mut events, "got hello");
    let kill = json!({"process": by_pid, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(guest.call("process.Process/SendSignal", &kill).status, 200);
    assert_eq!(events.finish().end["status"], "signal: killed");
}

#[test]
fn ended_processes_and_their_children_are_kept() {
    let (first, second) = (Guest::new(), Sandbox::new());
    let go = first.path("go");
    let script = format!("while ! test -e {}; do sleep 0.05; done; (sleep 60) & echo unread; exit 3", go.display());
    let ended = json!({"pid": first.start(&script).pid()});
    std::fs::write(&go, "").unwrap();
    wait_until(|| first.call("process.Process/List", &json!({})).json().get("processes").is_none());
    let state = checkpoint(&first);
    let child = StandIn::new(&second);
    let ends = restore(&second, &state);
    let stdout = state["processes"]["leftovers"].as_array().unwrap().iter().find(|left| left["source"] == "stdout");
    let fd = ends.fd(&stdout.unwrap()["connection"]);
    child.run(json!({"1": fd}), &["/bin/sh", "-c", "echo from the child; sleep 0.2; echo later"]);
    finish(&second);
    let outcome = connect(&second.guest, &ended).finish();
    assert_eq!((outcome.text().as_str(), &outcome.end["exitCode"]), ("unread\n", &json!(3)));
    wait_until(|| second.guest.request("GET", "/logs?after=0", &HOST, b"").text().contains("later"));
}

#[test]
fn a_process_that_dies_before_the_end_of_the_restore_has_ended() {
    let (first, second) = (Guest::new(), Sandbox::new());
    first.start("sleep 60").pid();
    let mut state = checkpoint(&first);
    let process = StandIn::new(&second);
    let by_pid = json!({"pid": process.pid});
    state["processes"]["live"][0]["pid"] = json!(process.pid);
    restore(&second, &state);
    process.run(json!({}), &["/bin/sh", "-c", "exec >/dev/null 2>&1; exit 7"]);
    wait_until(|| !second.processes("").contains(&by_pid["pid"].to_string()));
    finish(&second);
    assert_eq!(connect(&second.guest, &by_pid).finish().end["exitCode"], 7);
}

#[test]
fn watchers_are_there_under_their_ids() {
    let (first, second) = (Guest::new(), Sandbox::new());
    let directory = tempfile::tempdir().unwrap();
    let request = json!({"path": directory.path(), "recursive": true});
    let id = first.call("filesystem.Filesystem/CreateWatcher", &request).json()["watcherId"].clone();
    restore(&second, &checkpoint(&first));
    finish(&second);
    std::fs::write(directory.path().join("new"), "").unwrap();
    let events = second.guest.call("filesystem.Filesystem/GetWatcherEvents", &json!({"watcherId": id})).json();
    assert!(events["events"].as_array().unwrap().iter().any(|event| event["name"] == "new"), "{events}");
}

/// A kernel in the middle of a cell, which ends when a file appears.
const KERNEL: &str = r#"
import json, os, socket, time
stream = socket.socket(fileno=3).makefile('rw')
print('output of the old cell', flush=True)
while not os.path.exists('/home/user/go'): time.sleep(0.01)
stream.write('"}\n{"type": "end_of_execution"}\n')
stream.flush()
assert json.loads(stream.readline()) == {'op': 'restored', 'seed': None}
for line in stream:
    order = json.loads(line)
    stream.write('{"type": "number_of_executions", "execution_count": 2}\n')
    stream.flush()
    print('ran ' + order['code'], flush=True)
    stream.write('{"type": "end_of_execution"}\n')
    stream.flush()
"#;

#[test]
fn contexts_are_the_same_and_a_cell_that_runs_is_waited_for() {
    let (first, second) = (Sandbox::new(), Sandbox::new());
    let other = first.create(&json!({"cwd": "/tmp"}));
    let mut cell = first.start(&json!({"code": "import time; print(1, flush=True); time.sleep(60)"}));
    cell.printed();
    let listed = first.request("GET", "/contexts", &[], "").json();
    let mut state = checkpoint(&first.guest);
    let (default, second_kernel) = (StandIn::new(&second), StandIn::new(&second));
    let all = state["contexts"]["all"].as_array_mut().unwrap();
    let at = |all: &Vec<Value>, id: &str| all.iter().position(|context| context["id"] == id).unwrap();
    let (of_other, of_default) = (at(all, &other), all.iter().position(|c| c["kernel"]["in_cell"] == true).unwrap());
    all[of_default]["kernel"]["pid"] = json!(default.pid);
    // As if it had been dumped in the middle of a line.
    all[of_default]["kernel"]["line"] = json!(base64::engine::general_purpose::STANDARD.encode("{\"type\": \"x"));
    all[of_other]["kernel"]["pid"] = json!(second_kernel.pid);
    let kernels = [all[of_default]["kernel"].clone(), all[of_other]["kernel"].clone()];
    let ends = restore(&second, &state);
    for (stand_in, kernel) in [default, second_kernel].into_iter().zip(&kernels) {
        let descriptors = json!({
            "3": ends.fd(&kernel["stream"]), "1": ends.fd(&kernel["stdout"]), "2": ends.fd(&kernel["stderr"]),
        });
        stand_in.run(descriptors, &["/usr/bin/python3", "-c", KERNEL]);
    }
    finish(&second);
    assert_eq!(second.request("GET", "/contexts", &[], "").json(), listed);
    assert_eq!(second.status()["parked"], true);
    std::thread::scope(|scope| {
        let cell = scope.spawn(|| second.run("code"));
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!cell.is_finished());
        second.write("/home/user/go", "");
        let executed = cell.join().unwrap();
        assert_eq!((executed.stdout.as_str(), &executed.error), ("ran code\n", &None));
    });
    // Not in a cell, and killed: the next cell gets a real kernel.
    let removed = second.request("POST", &format!("/contexts/{other}/restart"), &[], "");
    assert_eq!(removed.status, 200, "{}", removed.text());
    assert_eq!(second.run_in(&other, "import os; os.getcwd()").value(), "/tmp");
}
