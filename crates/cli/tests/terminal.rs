//! `isopod run -t` on a real pseudo-terminal, as a person sits before one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};

use isopod_testkit::StateDir;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// The two ends of a terminal: ours, where keys are pressed and the screen is seen, and the program's.
struct Terminal {
    ours: File,
    theirs: OwnedFd,
    /// Everything that was on the screen.
    seen: String,
}

impl Terminal {
    fn new(rows: u16, columns: u16) -> Self {
        let ours =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal of our own");
        grantpt(&ours).expect("a terminal of our own");
        unlockpt(&ours).expect("a terminal of our own");
        let name = ptsname(&ours, Vec::new()).expect("a terminal of our own");
        let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
            .expect("a terminal of our own");
        let terminal = Self { ours: File::from(ours), theirs, seen: String::new() };
        terminal.resize(rows, columns);
        terminal
    }

    fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.theirs, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
            .expect("a terminal of our own");
    }

    fn run(&self, state: &StateDir, script: &str) -> Child {
        let end = || Stdio::from(self.theirs.as_fd().try_clone_to_owned().expect("a terminal of our own"));
        let mut command = state.isopod().command(&["run", "-t", "--", "sh", "-c", script]);
        command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("a terminal of our own")
    }

    /// Reads the screen until it has shown this. A program that never does lets the test hang, and its harness ends it.
    fn wait_for(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !self.seen.contains(text) {
            let length = self.ours.read(&mut buffer).expect("a terminal of our own");
            assert_ne!(length, 0, "the terminal was closed: {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("a terminal of our own");
    }

    fn settings(&self) -> Termios {
        tcgetattr(&self.theirs).expect("a terminal of our own")
    }
}

#[test]
fn size_keys_ctrl_c_and_exit_code_pass_through_and_the_terminal_is_put_back() {
    let state = StateDir::new(BINARY);
    let mut terminal = Terminal::new(37, 101);
    let before = terminal.settings();
    let script = "tty; stty size; read line; echo heard $line; trap 'echo interrupted; exit 9' INT; echo ready; \
        while :; do sleep 0.1; done";
    let mut child = terminal.run(&state, script);
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
    let mut child = terminal.run(&state, script);
    terminal.wait_for("ready");
    terminal.resize(50, 132);
    // The kernel tells the terminal's own session, which is not ours to give away in a test.
    kill_process(Pid::from_child(&child), Signal::WINCH).unwrap();
    terminal.wait_for("50 132");
    terminal.press("\u{3}");
    assert_eq!(child.wait().unwrap().code(), Some(3));
    state.assert_nothing_left();
}
