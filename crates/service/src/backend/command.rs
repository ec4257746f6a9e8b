//! Commands: what to run, the events while it runs, and the complete output.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use isopod_guest_client::{MemoryBudget, Reservation};
use tokio::time::Instant;

use super::BackendError;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
const DEFAULT_MAX_OUTPUT: usize = 16 << 20;

/// A command to run. Create it with [`Command::shell`] or [`Command::argv`]. The fields may be set directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The program, or a shell command.
    pub line: CommandLine,
    /// The working directory. `None` means the user's home or the template's working directory.
    pub cwd: Option<String>,
    /// Variables in addition to the sandbox's own.
    pub env: BTreeMap<String, String>,
    /// The user. `None` means the sandbox's default user.
    pub user: Option<String>,
    /// It is killed after this time.
    pub timeout: Duration,
    /// Its standard input. `None` means an empty one.
    pub stdin: Option<Bytes>,
    /// How many bytes of each output stream [`Backend::execute`](super::Backend::execute) keeps.
    pub max_output: usize,
}

/// How a command is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    /// A line for a login shell, as the official SDKs run commands.
    Shell(String),
    /// A program and its arguments, without a shell.
    Argv {
        /// A path, or a name to look up in `PATH` in the sandbox.
        program: String,
        /// The arguments.
        arguments: Vec<String>,
    },
}

impl Command {
    /// A shell command.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(CommandLine::Shell(line.into()))
    }

    /// A program with arguments.
    pub fn argv<T: Into<String>>(program: impl Into<String>, arguments: impl IntoIterator<Item = T>) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self::new(CommandLine::Argv { program: program.into(), arguments })
    }

    fn new(line: CommandLine) -> Self {
        Self {
            line,
            cwd: None,
            env: BTreeMap::new(),
            user: None,
            timeout: DEFAULT_TIMEOUT,
            stdin: None,
            max_output: DEFAULT_MAX_OUTPUT,
        }
    }
}

/// An event of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// It runs with this pid. Always the first event.
    Started(u32),
    /// It wrote to standard output.
    Stdout(Bytes),
    /// It wrote to standard error.
    Stderr(Bytes),
    /// It ended. Always the last event.
    Ended(CommandEnd),
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    /// Its exit code, or -1 if a signal or its timeout ended it.
    pub exit_code: i32,
    /// As text: `exit status 1`, `signal: killed`.
    pub status: String,
    /// It was killed because of its timeout.
    pub timed_out: bool,
    /// From its start until its end was known.
    pub duration: Duration,
}

/// The output of a command, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Standard output, possibly truncated.
    pub stdout: Vec<u8>,
    /// Standard error, possibly truncated.
    pub stderr: Vec<u8>,
    /// Some of either stream was dropped because there was too much.
    pub truncated: bool,
    /// Its exit code, or -1 if a signal or its timeout ended it.
    pub exit_code: i32,
    /// As text.
    pub status: String,
    /// It was killed because of its timeout. The output until then is kept.
    pub timed_out: bool,
    /// How long it ran.
    pub duration: Duration,
}

/// The events of a command. The stream ends after [`CommandEvent::Ended`] or an error, never without either. Reading
/// slowly slows the command down.
pub struct CommandStream(BoxStream<'static, Result<CommandEvent, BackendError>>);

impl CommandStream {
    /// From a stream of events, the last of which is the end or an error.
    pub fn new(events: impl Stream<Item = Result<CommandEvent, BackendError>> + Send + 'static) -> Self {
        Self(events.boxed())
    }

    /// Waits for the end and keeps up to `max_bytes` of each stream.
    ///
    /// # Errors If the stream broke. The command may still be running.
    pub async fn collect(self, max_bytes: usize) -> Result<Output, BackendError> {
        self.collect_within(max_bytes, &mut MemoryBudget::unlimited().reserve()).await
    }

    /// Like [`Self::collect`], but also drops output that doesn't fit into this reservation.
    ///
    /// # Errors Like [`Self::collect`].
    pub async fn collect_within(mut self, max_bytes: usize, memory: &mut Reservation) -> Result<Output, BackendError> {
        let started = Instant::now();
        let (mut stdout, mut stderr) = (Kept::new(max_bytes), Kept::new(max_bytes));
        while let Some(event) = self.next().await {
            match event? {
                CommandEvent::Started(_) => {}
                CommandEvent::Stdout(bytes) => stdout.push(&bytes, memory),
                CommandEvent::Stderr(bytes) => stderr.push(&bytes, memory),
                CommandEvent::Ended(end) => return Ok(Output::of(stdout, stderr, end)),
            }
        }
        let after = started.elapsed();
        Err(BackendError::internal(format!("the events of a command ended after {after:?} without its end")))
    }
}

impl Stream for CommandStream {
    type Item = Result<CommandEvent, BackendError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl fmt::Debug for CommandStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandStream").finish_non_exhaustive()
    }
}

impl Output {
    fn of(stdout: Kept, stderr: Kept, end: CommandEnd) -> Self {
        Self {
            truncated: stdout.left_out || stderr.left_out,
            stdout: stdout.bytes,
            stderr: stderr.bytes,
            exit_code: end.exit_code,
            status: end.status,
            timed_out: end.timed_out,
            duration: end.duration,
        }
    }
}

/// The beginning of a stream that may be too long.
struct Kept {
    bytes: Vec<u8>,
    max_bytes: usize,
    left_out: bool,
}

impl Kept {
    fn new(max_bytes: usize) -> Self {
        Self { bytes: Vec::new(), max_bytes, left_out: false }
    }

    fn push(&mut self, more: &[u8], memory: &mut Reservation) {
        let room = (self.max_bytes - self.bytes.len()).min(more.len());
        let kept = if memory.grow(room) { room } else { 0 };
        self.bytes.extend_from_slice(&more[..kept]);
        self.left_out |= more.len() > kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> CommandEnd {
        CommandEnd { exit_code: 3, status: "exit status 3".into(), timed_out: false, duration: Duration::ZERO }
    }

    #[tokio::test]
    async fn output_beyond_the_limit_is_left_out_and_that_is_told() {
        let stream = || {
            let events = ["abc", "def"].map(|text| Ok(CommandEvent::Stdout(Bytes::from(text))));
            CommandStream::new(futures::stream::iter(events.into_iter().chain([Ok(CommandEvent::Ended(end()))])))
        };
        let output = stream().collect(4).await.unwrap();
        assert_eq!((output.stdout.as_slice(), output.truncated, output.exit_code), (&b"abcd"[..], true, 3));
        let output = stream().collect(6).await.unwrap();
        assert_eq!((output.stdout.as_slice(), output.truncated), (&b"abcdef"[..], false));
    }

    #[tokio::test]
    async fn a_stream_without_an_end_is_an_error() {
        let events = futures::stream::iter([Ok(CommandEvent::Started(1))]);
        assert!(CommandStream::new(events).collect(4).await.is_err());
    }
}
