//! Case 18: `kill -9` at every step. Whatever was being done, nothing is lost that was promised and nothing is left.
//!
//! strace kills a process at its n-th system call of a kind. Server, spawner, launcher and first process each count for
//! themselves, so one value of n ends whichever of them comes that far, and all values together cover every step of
//! create, exec, pause, resume and kill. (A build that is killed is in `template_server.rs`.)

use crate::common;

use std::process::{Command, Stdio};

use common::Server;
use isopod_client::sandbox::{ApiError, Client, ListSandboxes, NewSandbox};
use isopod_testkit::StateDir;
use isopod_wire::SandboxId;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// Calls between which the steps lie: they make, name, hand over or remove something.
const STEPS: &str = "mkdir,mkdirat,rename,unlink,unlinkat,rmdir,sendmsg,clone3,mount,move_mount,mount_setattr,setns,unshare,\
                     pivot_root,execveat,seccomp,connect,accept4,bind";

/// The same for a server, without the calls that a guest makes too: a guest that is killed is a sandbox that is lost.
const SERVER_STEPS: &str = "rename,rmdir,setns,connect,bind";

/// Every n of a full run; otherwise a sample that reaches into each phase.
fn points() -> Vec<u32> {
    match std::env::var_os("ISOPOD_FULL") {
        Some(_) => (1..=90).collect(),
        None => vec![1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20, 24, 28, 33, 38, 44, 50, 60, 70],
    }
}

#[test]
fn case_18_a_run_killed_at_any_step_leaves_nothing() {
    let state = StateDir::new(BINARY);
    // The base template is made once, so that the points lie in the life of the sandbox.
    state.isopod().run(&["run", "--", "true"]).ok();
    let mut killed = 0;
    for point in points() {
        let status = strace(&state, point);
        killed += u32::from(!status.success());
        // What the orphaned spawner's sweep did not get to, because it was killed too, the next command removes.
        state.isopod().run(&["__sweep"]).ok();
        state.assert_nothing_left();
        state.isopod().run(&["run", "--", "true"]).ok();
    }
    assert!(killed >= 10, "only {killed} runs were killed: the points do not lie in them any more");
    state.assert_nothing_left();
}

/// What a client of the server knows: what it was given and has not ended.
#[derive(Default)]
struct Known {
    alive: Vec<SandboxId>,
    /// It was being ended when the server died, so it may or may not be there.
    unsure: Vec<SandboxId>,
}

#[tokio::test(flavor = "multi_thread")]
async fn case_18_a_server_killed_at_any_step_loses_and_leaves_nothing() {
    let state = StateDir::new(BINARY);
    state.isopod().run(&["run", "--", "true"]).ok();
    let mut killed = 0;
    for point in points() {
        let mut command = strace_command(SERVER_STEPS, point);
        command.arg("--state-dir").arg(state.path()).args(["serve", "--pool-ready", "1", "--pool-prepared", "1"]);
        let mut known = Known::default();
        if let Some(server) = Server::try_start(command) {
            // The server dies in the middle of one of these, and everything after it fails.
            let _ = live(&server.client(), &mut known).await;
            killed += u32::from(server.has_ended());
            server.kill();
        }
        let server = Server::start(state.isopod().command(&["serve", "--pool-ready", "1", "--pool-prepared", "1"]));
        check(&server.client(), &known, point).await;
        server.stop();
        state.assert_nothing_left();
    }
    assert!(killed >= 5, "only {killed} servers were killed while they worked: the points do not lie there any more");
}

/// Create, exec, pause, resume and kill, as a client does.
async fn live(client: &Client, known: &mut Known) -> Result<(), ApiError> {
    for _ in 0..3 {
        let sandbox = client.create(NewSandbox::new("base")).await?;
        known.alive.push(sandbox.id().clone());
        let _ = sandbox.guest().run("echo hi > /tmp/hi").await;
        client.pause(sandbox.id(), true).await?;
        client.connect(sandbox.id(), None).await?;
        client.pause(sandbox.id(), false).await?;
        client.connect(sandbox.id(), None).await?;
    }
    let id = known.alive.pop().expect("three were made");
    known.unsure.push(id.clone());
    client.kill(&id).await?;
    Ok(())
}

/// What the client was given is there and works; whatever else is listed can be ended like any other.
async fn check(client: &Client, known: &Known, point: u32) {
    for id in &known.alive {
        let sandbox =
            client.connect(id, None).await.unwrap_or_else(|error| panic!("{id} was lost at {point}: {error:?}"));
        assert_eq!(sandbox.guest().run("echo alive").await.expect("it answers").stdout, b"alive\n", "at {point}");
        assert!(client.kill(id).await.expect("it can be ended"));
    }
    for id in &known.unsure {
        client.kill(id).await.expect("it can be ended");
    }
    for sandbox in client.list(ListSandboxes::default()).collect().await.expect("a list") {
        assert!(client.kill(&sandbox.id).await.expect("it can be ended"), "{sandbox:?} at {point}");
    }
}

fn strace(state: &StateDir, point: u32) -> std::process::ExitStatus {
    let mut command = strace_command(STEPS, point);
    command.arg("--state-dir").arg(state.path()).args(["run", "--timeout", "20", "--", "true"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("strace is there; it is installed by its package name")
}

fn strace_command(steps: &str, point: u32) -> Command {
    let inject = format!("inject={steps}:signal=SIGKILL:when={point}");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={steps}"), "-e", &inject, BINARY]);
    command
}
