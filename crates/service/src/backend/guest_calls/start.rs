//! Starts a command and follows it.

use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, stream};
use isopod_guest_client::Guest;
use isopod_guest_client::guest::{Code, Event, Process, ProcessHandle, StartProcess};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::super::{BackendError, Command, CommandEnd, CommandEvent, CommandLine, CommandStream, Place};
use super::{Phase, of_guest};

/// The guest kills a command at its timeout. If it has not reported that by then, we stop waiting.
const GRACE: Duration = Duration::from_secs(15);
/// Longer than any sandbox lives.
const MAX_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);

pub(in super::super) async fn start(guest: &Guest, command: Command) -> Result<CommandStream, BackendError> {
    if command.timeout.is_zero() {
        return Err(BackendError::invalid("the timeout of a command must not be zero"));
    }
    let limit = command.timeout.min(MAX_TIMEOUT);
    let stdin = command.stdin.clone();
    let process = guest.start(process_of(command, limit)).await.map_err(|error| of_guest(error, Phase::Opening))?;
    let feeding = stdin.map(|bytes| AbortOnDropHandle::new(tokio::spawn(feed(process.handle(), bytes))));
    let started = Instant::now();
    Ok(CommandStream::new(events(Following { process, started, limit, _feeding: feeding })))
}

fn process_of(command: Command, limit: Duration) -> StartProcess {
    let mut process = match command.line {
        CommandLine::Shell(line) => StartProcess::shell(line),
        CommandLine::Argv { program, arguments } => StartProcess::new(program).args(arguments),
    };
    process.envs = command.env;
    process.cwd = command.cwd;
    process.user = command.user;
    process.stdin = command.stdin.is_some();
    process.timeout = Some(limit);
    process
}

/// It is not an error if a command does not read all of its input.
async fn feed(process: ProcessHandle, bytes: Bytes) {
    if process.send_stdin(bytes).await.is_ok() {
        let _ = process.close_stdin().await;
    }
}

struct Following {
    process: Process,
    started: Instant,
    limit: Duration,
    /// Ends with the stream.
    _feeding: Option<AbortOnDropHandle<()>>,
}

fn events(following: Following) -> impl Stream<Item = Result<CommandEvent, BackendError>> {
    stream::unfold(Some(following), |following| async move {
        let mut following = following?;
        let event = following.next().await?;
        let is_last = matches!(event, Err(_) | Ok(CommandEvent::Ended(_)));
        Some((event, (!is_last).then_some(following)))
    })
}

impl Following {
    async fn next(&mut self) -> Option<Result<CommandEvent, BackendError>> {
        loop {
            let next = timeout_at(self.started + self.limit + GRACE, self.process.next()).await;
            return Some(match next {
                Err(_) => Err(self.overdue()),
                Ok(Ok(None)) => return None,
                Ok(Ok(Some(Event::Started(pid)))) => Ok(CommandEvent::Started(pid)),
                Ok(Ok(Some(Event::Stdout(bytes)))) => Ok(CommandEvent::Stdout(bytes)),
                Ok(Ok(Some(Event::Stderr(bytes)))) => Ok(CommandEvent::Stderr(bytes)),
                // It has no terminal.
                Ok(Ok(Some(Event::Pty(_)))) => continue,
                Ok(Ok(Some(Event::End(ended)))) => Ok(self.ended(ended.exit_code, ended.status, false)),
                Ok(Err(error)) if error.code() == Some(Code::DeadlineExceeded) => {
                    Ok(self.ended(-1, format!("killed after {:?}", self.limit), true))
                }
                Ok(Err(error)) => Err(of_guest(error, Phase::Streaming)),
            });
        }
    }

    fn ended(&self, exit_code: i32, status: String, timed_out: bool) -> CommandEvent {
        CommandEvent::Ended(CommandEnd { exit_code, status, timed_out, duration: self.started.elapsed() })
    }

    fn overdue(&self) -> BackendError {
        BackendError::Timeout { what: "the end of a command".to_owned(), limit: self.limit, place: Place::Sandbox }
    }
}
