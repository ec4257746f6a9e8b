//! A pseudo-terminal of a test, and what a person would see on it.

#![allow(dead_code, reason = "each test that includes this uses a part of it")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// The two ends of a terminal: ours, where keys are pressed and the screen is seen, and the program's.
pub(crate) struct Terminal {
    ours: File,
    /// None once nobody else may open it.
    theirs: Option<OwnedFd>,
    /// Everything that was on the screen.
    pub(crate) seen: String,
    /// The beginning of a character.
    unfinished: Vec<u8>,
}

/// A program that has been silent for this long, and has not shown what it should, never will.
const SILENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

impl Terminal {
    pub(crate) fn new(rows: u16, columns: u16) -> Self {
        let ours =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal of our own");
        grantpt(&ours).expect("a terminal of our own");
        unlockpt(&ours).expect("a terminal of our own");
        let name = ptsname(&ours, Vec::new()).expect("a terminal of our own");
        let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
            .expect("a terminal of our own");
        let terminal =
            Self { ours: File::from(ours), theirs: Some(theirs), seen: String::new(), unfinished: Vec::new() };
        terminal.resize(rows, columns);
        terminal
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.ours, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
            .expect("a terminal of our own");
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Child {
        let end = || {
            Stdio::from(
                self.theirs
                    .as_ref()
                    .expect("nobody watched yet")
                    .as_fd()
                    .try_clone_to_owned()
                    .expect("a terminal of our own"),
            )
        };
        if !command.get_envs().any(|(name, _)| name == "TERM") {
            command.env("TERM", "xterm");
        }
        command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("a terminal of our own")
    }

    /// Reads the screen until it has shown this.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !self.seen.contains(text) {
            let mut ready = [PollFd::new(&self.ours, PollFlags::IN)];
            let count = poll(&mut ready, Some(&SILENCE)).expect("a terminal of our own");
            assert_ne!(count, 0, "nothing came for a minute, and '{text}' was not there: {}", self.seen);
            let length = self.ours.read(&mut buffer).expect("a terminal of our own");
            assert_ne!(length, 0, "the terminal was closed: {}", self.seen);
            self.add(&buffer[..length]);
        }
    }

    /// A read may end within a character.
    fn add(&mut self, bytes: &[u8]) {
        self.unfinished.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.unfinished) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.unfinished.len(),
        };
        let rest = self.unfinished.split_off(whole);
        self.seen.push_str(&String::from_utf8_lossy(&self.unfinished));
        self.unfinished = rest;
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("a terminal of our own");
    }

    pub(crate) fn settings(&self) -> Termios {
        tcgetattr(&self.ours).expect("a terminal of our own")
    }

    /// Reads the screen until the program has ended, and says how. No other program can use it afterwards.
    pub(crate) fn watch(&mut self, child: &mut Child) -> Option<i32> {
        // Reading ends when nobody has the other end any more.
        self.theirs = None;
        let mut bytes = Vec::new();
        // On Linux the end is an error.
        let _ = self.ours.read_to_end(&mut bytes);
        self.add(&bytes);
        child.wait().expect("a child of our own").code()
    }

    /// What is on the screen now, without empty lines at its end. `columns` as it was made with.
    pub(crate) fn screen(&self, columns: usize) -> Vec<String> {
        draw(&self.seen, columns)
    }
}

/// As much of a terminal as progress bars need: lines, the cursor's moves, and wiping. It never scrolls.
fn draw(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0, 0);
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        match character {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{1b}' => {
                assert_eq!(rest.next(), Some('['), "an escape that progress bars do not use");
                let mut number = String::new();
                let last = rest.by_ref().find(|c| {
                    number.extend(c.is_ascii_digit().then_some(*c));
                    c.is_ascii_alphabetic()
                });
                let number = number.parse().unwrap_or(if last == Some('K') { 0 } else { 1 });
                match last {
                    Some('A') => row -= number.min(row),
                    Some('B') => row += number,
                    Some('G') => column = number - 1,
                    Some('K') if number == 2 => lines[row].clear(),
                    Some('K') => lines[row].truncate(column),
                    Some('J') => lines.truncate(row + 1),
                    Some('h' | 'l' | 'm') => {}
                    other => panic!("an escape that progress bars do not use: {other:?}"),
                }
            }
            shown => {
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                lines.resize(lines.len().max(row + 1), Vec::new());
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = shown;
                column += 1;
            }
        }
        lines.resize(lines.len().max(row + 1), Vec::new());
    }
    let mut shown: Vec<String> =
        lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned()).collect();
    while shown.last().is_some_and(String::is_empty) {
        shown.pop();
    }
    shown
}
