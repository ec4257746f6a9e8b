//! The events of a process: its output and its end.

use bytes::Bytes;
use isopod_wire::rpc::process::ProcessEvent;
use isopod_wire::rpc::process::process_event::{self, EndEvent, data_event};

/// An event of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was started. Always the first event. Contains the pid.
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
    /// Its exit code, or -1 if a signal ended it.
    pub exit_code: i32,
    /// Whether it exited by itself.
    pub exited: bool,
    /// A description, such as `exit status 1` or `signal: killed`.
    pub status: String,
    /// Set if it did not succeed.
    pub error: Option<String>,
}

impl Ended {
    /// Whether it exited with 0.
    pub fn is_success(&self) -> bool {
        self.exited && self.exit_code == 0
    }
}

/// The output of a process, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Standard output, or the output of the terminal.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Whether output was dropped because it exceeded the requested limit.
    pub truncated: bool,
    /// How it ended.
    pub ended: Ended,
}

impl Output {
    /// Standard output as text. Invalid UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Returns `None` for keepalives and for events of newer guests.
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
