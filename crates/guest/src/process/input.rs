//! Input of processes: `SendInput`, `StreamInput`, and closing standard input.
//!
//! Writers take turns. One that waits for a full pipe delays only writers to the same process. When the process ends, all
//! waiting writers get an error.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isopod_wire::rpc::process::process_input::Input as Data;
use isopod_wire::rpc::process::stream_input_request::Event;
use isopod_wire::rpc::process::{
    ProcessInput, SendInputRequest, SendInputResponse, StreamInputRequest, StreamInputResponse,
};
use rustix::termios::Winsize;
use tokio::io::Interest;
use tokio::sync::Notify;

use crate::process::pump::Pipe;
use crate::process::{Process, Processes};
use crate::rpc::{Code, MessageStream, RpcError};

/// The input of a process.
#[derive(Debug)]
pub(crate) struct Input {
    is_terminal: bool,
    /// `None` if the process has no input or it was closed. Locked only for a moment.
    pipe: Mutex<Option<Pipe>>,
    /// Held by the current writer.
    turn: tokio::sync::Mutex<()>,
    /// Wakes waiting writers when the process ends.
    over: Notify,
}

impl Input {
    fn new(is_terminal: bool, pipe: Option<Pipe>) -> Self {
        Self { is_terminal, pipe: Mutex::new(pipe), turn: tokio::sync::Mutex::new(()), over: Notify::new() }
    }

    pub(crate) fn none() -> Self {
        Self::new(false, None)
    }

    pub(crate) fn pipe(write: OwnedFd) -> std::io::Result<Self> {
        Ok(Self::new(false, Some(Pipe::with_interest(write, Interest::WRITABLE)?)))
    }

    pub(crate) fn terminal(master: Pipe) -> Self {
        Self::new(true, Some(master))
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// The process has ended: wakes all writers and closes its terminal.
    pub(crate) fn close_now(&self) {
        *self.current() = None;
        self.over.notify_waiters();
    }

    pub(crate) fn resize(&self, size: Winsize) -> Result<(), RpcError> {
        let Some(master) = self.current().clone().filter(|_| self.is_terminal) else {
            return Err(RpcError::new(Code::FailedPrecondition, "tty not assigned to process"));
        };
        rustix::termios::tcsetwinsize(master.fd(), size)
            .map_err(|error| RpcError::new(Code::Internal, format!("error resizing tty: {error}")))
    }

    /// Closes standard input once earlier writes are done.
    pub(crate) async fn close(&self) -> Result<(), RpcError> {
        if self.is_terminal {
            let message = "cannot close stdin for PTY process: send Ctrl+D (0x04) instead";
            return Err(RpcError::new(Code::FailedPrecondition, message));
        }
        let _turn = self.turn.lock().await;
        *self.current() = None;
        Ok(())
    }

    async fn write(&self, data: &Data) -> Result<(), RpcError> {
        let data = match (self.is_terminal, data) {
            (true, Data::Pty(data)) | (false, Data::Stdin(data)) => data,
            (true, Data::Stdin(_)) => {
                let message = "tty assigned to process: input should be written to the pty, not the stdin";
                return Err(RpcError::new(Code::FailedPrecondition, message));
            }
            (false, Data::Pty(_)) => {
                let message = "tty not assigned to process: input should be written to the stdin, not the tty";
                return Err(RpcError::new(Code::FailedPrecondition, message));
            }
        };
        let over = self.over.notified();
        tokio::pin!(over);
        over.as_mut().enable();
        tokio::select! {
            written = self.write_in_turn(data) => written,
            () = over => Err(RpcError::new(Code::Internal, "error writing input: the process has ended")),
        }
    }

    async fn write_in_turn(&self, data: &[u8]) -> Result<(), RpcError> {
        let _turn = self.turn.lock().await;
        let Some(pipe) = self.current().clone() else {
            return Err(RpcError::new(Code::FailedPrecondition, "stdin not enabled or closed"));
        };
        let written = pipe.write_all(data).await;
        written.map_err(|error| RpcError::new(Code::Internal, format!("error writing input: {error}")))
    }

    fn current(&self) -> MutexGuard<'_, Option<Pipe>> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes once.
pub(crate) async fn send_input(
    processes: &Processes,
    request: SendInputRequest,
) -> Result<SendInputResponse, RpcError> {
    let process = processes.live(&request.process)?;
    write(&process, &request.input).await?;
    Ok(SendInputResponse {})
}

/// Writes the data of a stream in order. The first message names the process.
pub(crate) async fn stream_input(
    processes: &Processes,
    mut messages: MessageStream<StreamInputRequest>,
) -> Result<StreamInputResponse, RpcError> {
    let mut process: Option<Arc<Process>> = None;
    while let Some(message) = messages.next().await? {
        match (message.event, &process) {
            (Some(Event::Start(start)), None) => process = Some(processes.live(&start.process)?),
            (Some(Event::Start(_)), Some(_)) => {
                return Err(RpcError::new(Code::InvalidArgument, "start was sent twice"));
            }
            (Some(Event::Data(data)), Some(process)) => write(process, &data.input).await?,
            (Some(Event::Data(_)), None) => {
                return Err(RpcError::new(Code::InvalidArgument, "the first message must be start"));
            }
            (Some(Event::Keepalive(_)) | None, _) => {}
        }
    }
    Ok(StreamInputResponse {})
}

async fn write(process: &Process, input: &ProcessInput) -> Result<(), RpcError> {
    match &input.input {
        Some(data) => process.input.write(data).await,
        None => Err(RpcError::new(Code::InvalidArgument, "input is empty")),
    }
}
