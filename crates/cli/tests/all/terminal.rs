//! `isopod run -t` on a real pseudo-terminal, as a person sits before one.

use crate::pty;

use std::process::Command;

use isopod_testkit::StateDir;
use pty::Terminal;
use rustix::process::{Pid, Signal, kill_process};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

fn in_a_terminal(state: &StateDir, script: &str) -> Command {
    state.isopod().command(&["run", "-t", "--", "sh", "-c", script])
}

#[test]
fn size_keys_ctrl_c_and_exit_code_pass_through_and_the_terminal_is_put_back() {
    let state = StateDir::new(BINARY);
    let mut terminal = Terminal::new(37, 101);
    let before = terminal.settings();
    let script = "tty; stty size; read line; echo heard $line; trap 'echo interrupted; exit 9' INT; echo ready; \
        while :; do sleep 0.1; done";
    let mut child = terminal.spawn(&mut in_a_terminal(&state, script));
    terminal.wait_for("37 101");
    assert!(terminal.seen.contains("/dev/pts/"), "{}", terminal.seen);
    terminal.press("hello\r");
    terminal.wait_for("heard hello");
    terminal.wait_for("ready");
    terminal.press("\u{3}");
    terminal.wait_for("interrupted");
    assert_eq!(child.wait().unwrap().code(), Some(9));
    let after = terminal.settings();
    assert_eq!((before.local_modes, before.input_modes), (after.local_modes, after.input_modes));
    state.assert_nothing_left();
}

#[test]
fn a_window_that_is_resized_tells_the_program_inside() {
    let state = StateDir::new(BINARY);
    let mut terminal = Terminal::new(24, 80);
    let script = "trap 'stty size' WINCH; trap 'exit 3' INT; echo ready; while :; do sleep 0.1; done";
    let mut child = terminal.spawn(&mut in_a_terminal(&state, script));
    terminal.wait_for("ready");
    terminal.resize(50, 132);
    // The kernel tells the terminal's own session, which is not ours to give away in a test.
    kill_process(Pid::from_child(&child), Signal::WINCH).unwrap();
    terminal.wait_for("50 132");
    terminal.press("\u{3}");
    assert_eq!(child.wait().unwrap().code(), Some(3));
    state.assert_nothing_left();
}
