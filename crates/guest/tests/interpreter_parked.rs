//! Forkservers that the host sends into the sandbox, and forkservers that do not arrive or misbehave.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use common::interpreter::{DRIVER, Sandbox};
use common::wait_until;
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::json;

/// The guest's and the forkserver's end of a socket; children inherit both.
fn socket() -> (OwnedFd, OwnedFd) {
    let (guest, forkserver) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    for end in [&guest, &forkserver] {
        rustix::io::fcntl_setfd(end, FdFlags::empty()).unwrap();
    }
    (guest, forkserver)
}

/// A sandbox that waits for a forkserver that has not arrived.
fn waiting() -> (Sandbox, OwnedFd) {
    let (guest, forkserver) = socket();
    rustix::io::fcntl_setfd(&forkserver, FdFlags::CLOEXEC).unwrap();
    let sandbox = Sandbox::bare(&["--mother-fd", &guest.as_raw_fd().to_string()]);
    rustix::io::fcntl_setfd(&forkserver, FdFlags::empty()).unwrap();
    (sandbox, forkserver)
}

struct Forkserver(Child);

impl Forkserver {
    /// Enters the sandbox from outside and becomes its forkserver.
    fn enter(sandbox: &Sandbox, socket: OwnedFd) -> Self {
        let fd = socket.as_raw_fd().to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &sandbox.guest_pid(), "-p", "-m", "-n", "-S", "1000", "-G", "1000", "--"]);
        command.args(["/usr/bin/python3", "-s", &format!("{DRIVER}/run.py"), "mother", "--warm", "none", "--fd", &fd]);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Forkserver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_parked_kernel_waits_for_the_first_cell_and_runs_it() {
    let (sandbox, socket) = waiting();
    assert_eq!(sandbox.status(), json!({"parked": false, "python": "", "ipython": false, "contexts": 0}));
    let _forkserver = Forkserver::enter(&sandbox, socket);
    wait_until(|| sandbox.status()["parked"] == true);
    let status = sandbox.status();
    assert!(status["python"].as_str().unwrap().starts_with("3."), "{status}");
    assert_eq!(status["contexts"], 1);
    // Settings that the host sends only now apply to the parked kernel.
    sandbox.guest.init(&json!({"envVars": {"SANDBOX": "late"}}));
    let pid = sandbox.run("import os; os.getpid(), os.environ['SANDBOX'], os.getcwd()");
    assert!(pid.value().ends_with(", 'late', '/home/user')"), "{pid:?}");
    // The guest has not started a forkserver of its own.
    let outside = sandbox.processes("--warm shell");
    assert!(outside.is_empty(), "{outside:?}");
}

#[test]
fn a_forkserver_that_does_not_arrive_is_replaced() {
    let (sandbox, socket) = waiting();
    sandbox.guest.init(&json!({}));
    assert_eq!(sandbox.run("1+1").value(), "2");
    assert!(!sandbox.processes("--warm shell").is_empty());
    drop(socket);
    assert_eq!(sandbox.run("2+2").value(), "4");
}

#[test]
fn a_parked_forkserver_that_dies_is_replaced() {
    let (sandbox, socket) = waiting();
    let forkserver = Forkserver::enter(&sandbox, socket);
    wait_until(|| sandbox.status()["parked"] == true);
    sandbox.guest.init(&json!({}));
    assert_eq!(sandbox.run("a = 1; a").value(), "1");
    let kernel = sandbox.run("import os; os.getpid()").value().to_owned();
    for pid in sandbox.processes("--warm none").iter().filter(|pid| **pid != kernel) {
        sandbox.kill(pid);
    }
    drop(forkserver);
    assert_eq!(sandbox.run("a").value(), "1");
    let other = sandbox.create(&json!({}));
    assert_eq!(sandbox.run_in(&other, "2").value(), "2");
}

#[test]
fn a_parked_forkserver_ends_for_a_checkpoint_and_its_kernel_stays() {
    let (sandbox, socket) = waiting();
    let _forkserver = Forkserver::enter(&sandbox, socket);
    wait_until(|| sandbox.status()["parked"] == true);
    sandbox.guest.init(&json!({}));
    assert_eq!(sandbox.run("a = 1; a").value(), "1");
    let post = |path| sandbox.guest.request("POST", path, &[("X-Isopod-Control", "1")], b"");
    let held = post("/checkpoint/hold");
    assert_eq!(held.status, 200, "{}", held.text());
    let state = post("/checkpoint/state").json();
    let kernel = state["contexts"]["all"][0]["kernel"]["pid"].to_string();
    assert_eq!(sandbox.processes("--warm none"), [kernel]);
    assert_eq!(post("/checkpoint/release").status, 204);
    assert_eq!(sandbox.run("a").value(), "1");
    let other = sandbox.create(&json!({}));
    assert_eq!(sandbox.run_in(&other, "2").value(), "2");
}

#[test]
fn a_parked_kernel_that_was_killed_is_replaced() {
    let (sandbox, socket) = waiting();
    let _forkserver = Forkserver::enter(&sandbox, socket);
    wait_until(|| sandbox.status()["parked"] == true);
    let all = sandbox.processes("--warm none");
    // The kernel was started last.
    sandbox.kill(all.iter().max_by_key(|pid| pid.parse::<u32>().unwrap()).unwrap());
    wait_until(|| sandbox.status()["parked"] == false);
    sandbox.guest.init(&json!({}));
    assert_eq!(sandbox.run("1+1").value(), "2");
}

#[test]
fn the_reason_why_a_forkserver_cannot_start_is_reported() {
    let sandbox = Sandbox::scripted("raise ImportError('no module named spam')");
    let executed = sandbox.run("1");
    let (name, value) = executed.failure();
    assert!(name == "KernelNotStarted" && value.contains("ImportError: no module named spam"), "{value}");
    let sandbox = Sandbox::scripted("");
    assert!(sandbox.run("1").failure().1.contains("without an error message"));
}

/// A driver whose forkserver sends garbage, and whose kernels run this code.
fn scripted_kernel(kernel: &str) -> String {
    format!(
        "
import json, os, socket, sys
forkserver = socket.socket(fileno=3)
for packet in [b'garbage', b'{{}}', b'[]', b'{{\"op\":\"exited\",\"context\":\"x\",\"status\":[]}}', b'x' * 60000]:
    forkserver.send(packet)
forkserver.send(json.dumps({{'op': 'ready', 'pid': 1}}).encode())
while True:
    message, fds, _, _ = socket.recv_fds(forkserver, 65536, 16)
    if not message:
        sys.exit()
    if os.fork() == 0:
        stream = socket.socket(fileno=fds[0])
        os.dup2(fds[2], 2)
        {kernel}
        os._exit(0)
    for fd in fds:
        os.close(fd)
"
    )
}

#[test]
fn invalid_kernels_are_refused() {
    for (kernel, reason) in [
        ("stream.send(b'garbage\\n')", "invalid first message"),
        ("stream.send(b'{\"type\":\"hello\",\"pid\":1}\\n')", "invalid first message"),
        ("stream.send(b'{\"type\":\"hello\",\"pid\":-5}\\n')", "invalid first message"),
        ("stream.send(b'{\"type\":\"hello\",\"pid\":4000000}\\n')", "invalid first message"),
        ("stream.send(b'{\"type\":\"failed\",\"message\":\"no luck\"}\\n')", "no luck"),
        ("os.write(2, b'Fatal: broken\\n')", "exited before it was ready: Fatal: broken"),
    ] {
        let sandbox = Sandbox::scripted(&scripted_kernel(kernel));
        let executed = sandbox.run("1");
        assert!(executed.failure().1.contains(reason), "{kernel}: {executed:?}");
    }
}

#[test]
fn a_kernel_that_sends_an_endless_line_is_killed() {
    let kernel = "
        stream.send(b'{\"type\":\"hello\",\"pid\":%d}\\n' % os.getpid())
        while True: stream.send(b'x' * 65536)";
    let sandbox = Sandbox::scripted(&scripted_kernel(kernel));
    let executed = sandbox.run("1");
    assert_eq!(executed.failure().0, "UnexpectedEndOfExecution");
}
