//! The first start of a server: its template is not there yet, and "ready" means that creates work.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod pty;
mod served;

use std::process::Command;

use isopod_testkit::StateDir;
use pty::Terminal;
use rustix::process::{Pid, Signal, kill_process};
use served::{BINARY, Served};

const TEMPLATE: &str = "code-interpreter-v1";

/// A server that builds its template, which does not take long where nothing can be installed: without its packages it has
/// the Python of this machine.
fn serve(state: &StateDir) -> Command {
    let mut command = state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--prepare", TEMPLATE]);
    command.env("PIP_INDEX_URL", "http://index.invalid/simple").env("PIP_DEFAULT_TIMEOUT", "1");
    command
}

#[test]
fn a_server_says_that_it_is_ready_when_its_template_is() {
    let state = StateDir::new(BINARY);
    let mut server = Served::start_command(&state, serve(&state));
    assert_eq!(server.lines[0], "Isopod is starting. Paste this where your E2B code runs:");
    // It answers meanwhile.
    let early = server.create(&["--template", "base"]);
    server.read_until("Isopod is ready.");
    assert!(server.log().contains("Looking for Python"), "{}", server.log());
    let listed = server.run(&["template", "ls"]).ok();
    let ours = listed.lines().find(|line| line.contains(TEMPLATE)).unwrap_or_else(|| panic!("{listed}"));
    assert!(ours.contains(" ready "), "{listed}");
    let sandbox = server.create(&["--template", TEMPLATE]);
    server.read_until("could not be built, so its sandboxes have only the Python of this machine");
    server.run(&["kill", &early, &sandbox]).ok();
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn a_server_whose_template_is_there_says_so_at_once() {
    let state = StateDir::new(BINARY).with_shared_templates();
    state.isopod().run(&["template", "build", TEMPLATE]).ok();
    let server = Served::start_command(&state, serve(&state));
    assert_eq!(server.lines[0], "Isopod is ready. Paste this where your E2B code runs:");
    server.stop();
    state.assert_nothing_left();
}

#[test]
fn a_terminal_shows_a_bar_until_the_server_is_ready() {
    let state = StateDir::new(BINARY);
    let mut terminal = Terminal::new(24, 80);
    let mut child = terminal.spawn(&mut serve(&state));
    terminal.wait_for("\r\u{1b}[K░░░░");
    terminal.wait_for("Looking for Python (");
    terminal.wait_for("Isopod is ready.");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(terminal.watch(&mut child), Some(0));
    assert!(!terminal.seen.contains("total"), "the log tells the steps too: {}", terminal.seen);
    state.assert_nothing_left();
}
