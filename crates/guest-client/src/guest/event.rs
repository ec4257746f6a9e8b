//! What a process tells: its output and its end.

use bytes::Bytes;
use isopod_wire::rpc::process::ProcessEvent;
use isopod_wire::rpc::process::process_event::{self, EndEvent, data_event};

/// Something that a process did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It runs. Always the first event.
    Started(u32),
    /// It wrote to standard output.
    Stdout(Bytes),
    /// It wrote to standard error.
    Stderr(Bytes),
    /// It wrote to its terminal.
    Pty(Bytes),
    /// It ended. Always the last event.
    End(Ended),
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What it exited with; -1 when a signal ended it.
    pub exit_code: i32,
    /// Whether it exited by itself.
    pub exited: bool,
    /// In words: `exit status 1`, `signal: killed`.
    pub status: String,
    /// Set when it did not succeed.
    pub error: Option<String>,
}

impl Ended {
    /// Whether it exited with 0.
    pub fn is_success(&self) -> bool {
        self.exited && self.exit_code == 0
    }
}

/// What a process wrote, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Standard output, or what came from the terminal.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Some of either was left out because there was more than was asked for.
    pub truncated: bool,
    /// The end.
    pub ended: Ended,
}

impl Output {
    /// Standard output as text; what is no UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// None for signs of life and for events of newer guests.
pub(super) fn parse_event(event: ProcessEvent) -> Option<Event> {
    match event.event? {
        process_event::Event::Start(start) => Some(Event::Started(start.pid)),
        process_event::Event::Data(data) => Some(match data.output? {
            data_event::Output::Stdout(bytes) => Event::Stdout(bytes),
            data_event::Output::Stderr(bytes) => Event::Stderr(bytes),
            data_event::Output::Pty(bytes) => Event::Pty(bytes),
        }),
        process_event::Event::End(end) => Some(Event::End(end.into())),
        process_event::Event::Keepalive(_) => None,
    }
}

impl From<EndEvent> for Ended {
    fn from(end: EndEvent) -> Self {
        Self { exit_code: end.exit_code, exited: end.exited, status: end.status, error: end.error }
    }
}
