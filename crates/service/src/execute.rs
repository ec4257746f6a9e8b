//! Runs commands, with the complete output or as a stream, and records them in the history.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use isopod_guest_client::Reservation;
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use isopod_store::service::{AuditEntry, CommandRow, Record, ServiceSandbox, Status};
use serde_json::json;
use tokio::sync::mpsc;

use super::access::{Access, Operation};
use super::backend::{BackendError, Command, CommandEnd, CommandEvent, CommandLine, CommandStream, Output};
use super::hub::TEXT_BYTES;
use super::pause::live_sandbox;
use super::{Service, ServiceError};

/// A finished command.
#[derive(Debug)]
pub(crate) struct Execution {
    /// Its id in the history.
    pub(crate) id: String,
    pub(crate) sandbox: String,
    pub(crate) output: Output,
    /// For the output, until the reply is sent.
    _memory: Reservation,
}

/// A running command. It continues if nobody reads, and is recorded in the history in any case.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) id: String,
    pub(crate) sandbox: String,
    events: mpsc::Receiver<StreamEvent>,
}

/// An event for a follower of a command. The last one is the end or an error.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    Started(u32),
    Stdout(Bytes),
    Stderr(Bytes),
    Ended(CommandEnd),
    Failed(BackendError),
}

impl Stream for Running {
    type Item = StreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        self.events.poll_recv(context)
    }
}

/// How many events a follower may be behind before the command has to wait.
const MAX_BEHIND: usize = 64;

impl Service {
    /// Runs a command to its end.
    pub(crate) async fn execute(
        self: &Arc<Self>,
        access: &Access,
        id: &str,
        command: Command,
    ) -> Result<Execution, ServiceError> {
        let row = self.runnable(access, id, &command).await?;
        self.run(access, &row, command).await
    }

    /// Runs a command in a sandbox that has been checked. It is recorded in the history even if the caller is gone.
    pub(super) async fn run(
        self: &Arc<Self>,
        access: &Access,
        row: &ServiceSandbox,
        command: Command,
    ) -> Result<Execution, ServiceError> {
        let (service, access, row) = (Arc::clone(self), access.clone(), row.clone());
        let running = tokio::spawn(async move { service.run_now(&access, row, command).await });
        running.await.unwrap_or(Err(ServiceError::Aborted))
    }

    async fn run_now(&self, access: &Access, row: ServiceSandbox, command: Command) -> Result<Execution, ServiceError> {
        let sandbox = live_sandbox(&row)?;
        let mut history = History::begin(access, &row, &command);
        let started = Instant::now();
        let mut memory = self.fleet.memory.of(&row.team).reserve();
        match self.backend.execute_within(&sandbox, command, &mut memory).await {
            Ok(output) => {
                history.ended(self.config.keep_output, &output);
                self.publish_output(&row, &history.row);
                self.metrics.command(history.row.outcome, output.duration);
                let id = history.row.id.clone();
                self.keep(&row, history).await;
                Ok(Execution { id, sandbox: row.id, output, _memory: memory })
            }
            Err(error) => {
                history.failed(&error, started.elapsed());
                self.metrics.command("failed", started.elapsed());
                self.keep(&row, history).await;
                Err(self.explain(&row, error).await)
            }
        }
    }

    /// Starts a command and streams its events.
    pub(crate) async fn start(
        self: &Arc<Self>,
        access: &Access,
        id: &str,
        command: Command,
    ) -> Result<Running, ServiceError> {
        let row = self.runnable(access, id, &command).await?;
        let sandbox = live_sandbox(&row)?;
        let history = History::begin(access, &row, &command);
        let stream = match self.backend.start(&sandbox, command).await {
            Ok(stream) => stream,
            Err(error) => return Err(self.explain(&row, error).await),
        };
        let (sender, events) = mpsc::channel(MAX_BEHIND);
        let running = Running { id: history.row.id.clone(), sandbox: row.id.clone(), events };
        let (service, access) = (Arc::clone(self), access.clone());
        tokio::spawn(async move { service.follow(&access, row, history, stream, sender).await });
        Ok(running)
    }

    /// Forwards events from the command to its follower, if there is one, and records the end.
    async fn follow(
        &self,
        access: &Access,
        row: ServiceSandbox,
        mut history: History,
        mut stream: CommandStream,
        follower: mpsc::Sender<StreamEvent>,
    ) {
        let started = Instant::now();
        let keep = self.config.keep_output;
        let last = loop {
            let event = match stream.next().await {
                Some(Ok(CommandEvent::Started(pid))) => StreamEvent::Started(pid),
                Some(Ok(CommandEvent::Stdout(bytes))) => {
                    history.stdout.push(keep, &bytes);
                    self.publish_chunk(&row, &history.row.id, "stdout", &bytes);
                    StreamEvent::Stdout(bytes)
                }
                Some(Ok(CommandEvent::Stderr(bytes))) => {
                    history.stderr.push(keep, &bytes);
                    self.publish_chunk(&row, &history.row.id, "stderr", &bytes);
                    StreamEvent::Stderr(bytes)
                }
                Some(Ok(CommandEvent::Ended(end))) => {
                    history.end(&end);
                    break StreamEvent::Ended(end);
                }
                Some(Err(error)) => {
                    history.failed(&error, started.elapsed());
                    break StreamEvent::Failed(error);
                }
                None => {
                    let error = BackendError::internal("the events of a command ended without its end");
                    history.failed(&error, started.elapsed());
                    break StreamEvent::Failed(error);
                }
            };
            // The command continues if its follower is gone.
            let _ = follower.send(event).await;
        };
        history.take_streams();
        self.metrics.command(history.row.outcome, started.elapsed());
        self.keep(&row, history).await;
        let line = self.end_of_stream(access, &row, &last, started.elapsed());
        if self.recorder.audit(line).await.is_err() {
            tracing::warn!(sandbox = row.id, "could not audit the end of a command yet");
        }
        let _ = follower.send(last).await;
    }

    fn end_of_stream(&self, access: &Access, row: &ServiceSandbox, last: &StreamEvent, took: Duration) -> AuditEntry {
        let (status, code) = match last {
            StreamEvent::Failed(error) => (502, Some(error.kind().text().to_owned())),
            _ => (200, None),
        };
        AuditEntry {
            at: Timestamp::now(),
            team: row.team.clone(),
            actor: access.actor.clone(),
            action: "command.ended".to_owned(),
            sandbox: Some(row.id.clone()),
            agent: row.agent.clone(),
            task: row.task.clone(),
            source: None,
            status,
            code,
            micros: i64::try_from(took.as_micros()).unwrap_or(i64::MAX),
        }
    }

    /// The sandbox, if the caller may run this command in it.
    async fn runnable(&self, access: &Access, id: &str, command: &Command) -> Result<ServiceSandbox, ServiceError> {
        let row = self.find(access, Operation::Write, id).await?;
        self.config.policy.check(command)?;
        match row.status {
            Status::Running => Ok(row),
            // It may have been resumed through another API.
            Status::Paused => {
                let settled = self.settled(row).await?;
                if settled.status == Status::Running {
                    Ok(settled)
                } else {
                    Err(ServiceError::NotRunning(settled.status))
                }
            }
            status => Err(ServiceError::NotRunning(status)),
        }
    }

    async fn keep(&self, row: &ServiceSandbox, history: History) {
        if let Some(sandbox) = &row.sandbox {
            let bytes_out = history.row.stdout_bytes + history.row.stderr_bytes;
            self.recorder.note(Record::Bytes { sandbox: sandbox.to_string(), bytes_in: 0, bytes_out }).await;
        }
        self.recorder.note(Record::Command(Box::new(history.row))).await;
    }

    fn publish_output(&self, row: &ServiceSandbox, kept: &CommandRow) {
        let data = json!({
            "sandbox_id": row.id, "task_id": row.task, "command_id": kept.id, "stdout": kept.stdout,
            "stderr": kept.stderr, "exit_code": kept.exit_code, "outcome": kept.outcome,
        });
        self.hub.publish(&row.team, row.agent.as_deref(), "command_output", data);
    }

    fn publish_chunk(&self, row: &ServiceSandbox, id: &str, stream: &str, bytes: &[u8]) {
        // In chunks that the hub does not truncate, so that followers see the whole output.
        for text in pieces(&String::from_utf8_lossy(bytes), TEXT_BYTES) {
            let data =
                json!({ "sandbox_id": row.id, "task_id": row.task, "command_id": id, "stream": stream, "data": text });
            self.hub.publish(&row.team, row.agent.as_deref(), "command_output", data);
        }
    }
}

/// Splits a text into parts of at most `max_bytes`, at character boundaries.
fn pieces(text: &str, max_bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, left) = rest.split_at(rest.floor_char_boundary(max_bytes));
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}

/// A row of the history that is being written.
struct History {
    row: CommandRow,
    stdout: Kept,
    stderr: Kept,
}

/// The beginning of a stream, and its full length.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    total: i64,
}

impl Kept {
    fn push(&mut self, max_bytes: usize, more: &[u8]) {
        let room = max_bytes.saturating_sub(self.bytes.len()).min(more.len());
        self.bytes.extend_from_slice(&more[..room]);
        self.total = self.total.saturating_add(i64::try_from(more.len()).unwrap_or(i64::MAX));
    }

    fn text(&self) -> String {
        // Many readers of SQLite end a text at a zero byte.
        String::from_utf8_lossy(&self.bytes).replace('\0', "\u{fffd}")
    }
}

impl History {
    fn begin(access: &Access, row: &ServiceSandbox, command: &Command) -> Self {
        let text = match &command.line {
            CommandLine::Shell(line) => line.clone(),
            CommandLine::Argv { program, arguments } => {
                json!(std::iter::once(program).chain(arguments).collect::<Vec<_>>()).to_string()
            }
        };
        let row = CommandRow {
            id: new_uuid(),
            team: row.team.clone(),
            sandbox: row.id.clone(),
            agent: row.agent.clone(),
            task: row.task.clone(),
            actor: access.actor.clone(),
            command: text.chars().take(MAX_COMMAND).collect(),
            cwd: command.cwd.clone(),
            outcome: "failed",
            exit_code: None,
            error: None,
            stdout: String::new(),
            stderr: String::new(),
            stdout_bytes: 0,
            stderr_bytes: 0,
            started_at: Timestamp::now(),
            duration_ms: 0,
        };
        Self { row, stdout: Kept::default(), stderr: Kept::default() }
    }

    fn ended(&mut self, keep: usize, output: &Output) {
        self.stdout.push(keep, &output.stdout);
        self.stderr.push(keep, &output.stderr);
        self.take_streams();
        self.set_end(output.exit_code, output.timed_out, output.duration);
    }

    fn end(&mut self, end: &CommandEnd) {
        self.set_end(end.exit_code, end.timed_out, end.duration);
    }

    fn set_end(&mut self, exit_code: i32, timed_out: bool, duration: Duration) {
        self.row.exit_code = Some(exit_code);
        self.row.outcome = if timed_out { "timed_out" } else { "exited" };
        self.row.duration_ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    }

    fn failed(&mut self, error: &BackendError, took: Duration) {
        self.row.outcome = "failed";
        self.row.error = Some(error.to_string());
        self.row.duration_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
    }

    fn take_streams(&mut self) {
        (self.row.stdout, self.row.stdout_bytes) = (self.stdout.text(), self.stdout.total);
        (self.row.stderr, self.row.stderr_bytes) = (self.stderr.text(), self.stderr.total);
    }
}

/// Longer commands are truncated in the history.
const MAX_COMMAND: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_into_pieces_without_losing_a_character() {
        let text = "aä€😀".repeat(1000);
        let parts: Vec<&str> = pieces(&text, 4096).collect();
        assert_eq!(parts.concat(), text);
        assert!(parts.len() == 3 && parts.iter().all(|part| part.len() <= 4096), "{}", parts.len());
        assert_eq!(pieces("", 4096).count(), 0);
    }
}
