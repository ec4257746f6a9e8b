//! `kill -9` at every step: whatever was being done, nothing is lost that was promised and nothing is left.
//!
//! strace kills a process at its n-th system call of a kind. Server, spawner, launcher and first process each count for
//! themselves, so one value of n ends whichever of them comes that far, and all values together cover every step of
//! create, exec and kill.

use std::process::Stdio;

use isopod_testkit::StateDir;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// Calls between which the steps lie: they make, name, hand over or remove something.
const STEPS: &str = "mkdir,mkdirat,rename,unlink,unlinkat,rmdir,sendmsg,clone3,mount,move_mount,mount_setattr,setns,\
                     pivot_root,execveat,seccomp,connect,accept4,bind";

/// Every n of a full run; otherwise a sample that reaches into each phase.
fn points() -> Vec<u32> {
    match std::env::var_os("ISOPOD_FULL") {
        Some(_) => (1..=90).collect(),
        None => vec![1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20, 24, 28, 33, 38, 44, 50, 60, 70],
    }
}

#[test]
fn a_run_killed_at_any_step_leaves_nothing() {
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

fn strace(state: &StateDir, point: u32) -> std::process::ExitStatus {
    let inject = format!("inject={STEPS}:signal=SIGKILL:when={point}");
    let mut command = std::process::Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={STEPS}"), "-e", &inject, BINARY]);
    command.arg("--state-dir").arg(state.path()).args(["run", "--timeout", "20", "--", "true"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("strace is there; it is installed by its package name")
}
