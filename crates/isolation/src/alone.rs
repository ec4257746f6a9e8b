//! Runs tests that fork or change namespaces in a process of their own.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::sys::process::{Fork, exit_now, fork_beside_harness};

/// Set in a process that runs a single test.
const ALONE: &str = "ISOPOD_TEST_ALONE";

/// Runs the body in a process with one thread. Skips it without root. `name` is the test's path.
pub(crate) fn alone(name: &str, body: impl FnOnce()) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    if std::env::var_os(ALONE).is_some() {
        return in_child(body);
    }
    let program = std::env::current_exe().expect("a test has a program");
    let mut command = Command::new(program);
    let output = command.args(["--exact", name, "--test-threads=1", "--nocapture"]).env(ALONE, "1").output();
    let output = output.expect("a test starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn in_child(body: impl FnOnce()) {
    let Fork::Parent { pidfd, .. } = fork_beside_harness().expect("a fork") else {
        let passed = catch_unwind(AssertUnwindSafe(body)).is_ok();
        exit_now(i32::from(!passed))
    };
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).expect("a child").expect("its end");
    assert_eq!(status.exit_status(), Some(0), "the test failed, see above");
}
