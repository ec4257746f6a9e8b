//! Commands: what to run, what it tells while it runs, and all of it at once.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use tokio::time::Instant;

use super::BackendError;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
const DEFAULT_MOST_OUTPUT: usize = 16 << 20;

/// What to run. [`Command::shell`] and [`Command::argv`] make one; the fields may be set directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The program, or a line for a shell.
    pub line: CommandLine,
    /// Where it runs; none means the user's home or the template's working directory.
    pub cwd: Option<String>,
    /// Variables on top of the sandbox's own.
    pub env: BTreeMap<String, String>,
    /// Who runs it; none means the sandbox's default user.
    pub user: Option<String>,
    /// When it is killed.
    pub timeout: Duration,
    /// What it reads; none means the end at once.
    pub stdin: Option<Bytes>,
    /// How much of each of its two streams [`Backend::execute`](super::Backend::execute) keeps, in bytes.
    pub most_output: usize,
}

/// How a command is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    /// A line for a login shell, as the official SDKs run commands.
    Shell(String),
    /// A program and what follows it, without a shell around it.
    Argv {
        /// A path, or a name that is looked up along `PATH` inside the sandbox.
        program: String,
        /// What follows.
        arguments: Vec<String>,
    },
}

impl Command {
    /// A line for a shell.
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
            most_output: DEFAULT_MOST_OUTPUT,
        }
    }
}

/// Something that a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// It runs under this number. Always the first event.
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
    /// What it exited with; -1 when a signal or its timeout ended it.
    pub exit_code: i32,
    /// In words: `exit status 1`, `signal: killed`.
    pub status: String,
    /// Its time was over and it was killed.
    pub timed_out: bool,
    /// From its start until its end was known.
    pub duration: Duration,
}

/// All that a command wrote, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Standard output, or its beginning.
    pub stdout: Vec<u8>,
    /// Standard error, or its beginning.
    pub stderr: Vec<u8>,
    /// Some of either was left out because there was too much.
    pub truncated: bool,
    /// What it exited with; -1 when a signal or its timeout ended it.
    pub exit_code: i32,
    /// In words.
    pub status: String,
    /// Its time was over and it was killed; what it wrote until then is kept.
    pub timed_out: bool,
    /// How long it ran.
    pub duration: Duration,
}

/// The events of a command. It ends after [`CommandEvent::Ended`] or an error, never with silence; reading slowly slows
/// the command down.
pub struct CommandStream(BoxStream<'static, Result<CommandEvent, BackendError>>);

impl CommandStream {
    /// What gives these events, the last of which is the end or an error.
    pub fn new(events: impl Stream<Item = Result<CommandEvent, BackendError>> + Send + 'static) -> Self {
        Self(events.boxed())
    }

    /// Waits for the end and keeps up to `most` bytes of each stream.
    ///
    /// # Errors
    /// When the stream broke: the command may still run.
    pub async fn collect(mut self, most: usize) -> Result<Output, BackendError> {
        let started = Instant::now();
        let (mut stdout, mut stderr) = (Kept::new(most), Kept::new(most));
        while let Some(event) = self.next().await {
            match event? {
                CommandEvent::Started(_) => {}
                CommandEvent::Stdout(bytes) => stdout.push(&bytes),
                CommandEvent::Stderr(bytes) => stderr.push(&bytes),
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

/// The beginning of something that may be too long.
struct Kept {
    bytes: Vec<u8>,
    most: usize,
    left_out: bool,
}

impl Kept {
    fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), most, left_out: false }
    }

    fn push(&mut self, more: &[u8]) {
        let room = self.most - self.bytes.len();
        self.bytes.extend_from_slice(&more[..more.len().min(room)]);
        self.left_out |= more.len() > room;
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
