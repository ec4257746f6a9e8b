//! Input of processes: `SendInput`, `StreamInput`, and closing standard input.
//!
//! Writers take turns. One that waits for a full pipe delays only writers to the same process. When the process ends, all
//! waiting writers get an error.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isopod_wire::checkpoint::Connection;
use isopod_wire::rpc::process::process_input::Input as Data;
use isopod_wire::rpc::process::stream_input_request::Event;
use isopod_wire::rpc::process::{
    ProcessInput, SendInputRequest, SendInputResponse, StreamInputRequest, StreamInputResponse,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::termios::Winsize;
use tokio::io::Interest;
use tokio::sync::Notify;

use crate::connection;
use crate::encoded::Base64;
use crate::gate::Gate;
use crate::process::pump::Pipe;
use crate::process::saved::SavedInput;
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

    /// That of a process that has ended.
    pub(crate) fn ended(is_terminal: bool) -> Self {
        Self::new(is_terminal, None)
    }

    pub(crate) fn pipe(write: OwnedFd) -> io::Result<Self> {
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

    /// The process group that runs in front of the terminal, if there is one.
    pub(super) fn foreground(&self) -> Option<Pid> {
        let master = self.current().clone().filter(|_| self.is_terminal)?;
        rustix::termios::tcgetpgrp(master.fd()).ok()
    }

    pub(crate) fn resize(&self, size: Winsize) -> Result<(), RpcError> {
        let Some(master) = self.current().clone().filter(|_| self.is_terminal) else {
            return Err(RpcError::new(Code::FailedPrecondition, "tty not assigned to process"));
        };
        rustix::termios::tcsetwinsize(master.fd(), size)
            .map_err(|error| RpcError::new(Code::Internal, format!("error resizing tty: {error}")))
    }

    /// Closes standard input once earlier writes are done.
    pub(crate) async fn close(&self, gate: &Gate) -> Result<(), RpcError> {
        if self.is_terminal {
            let message = "cannot close stdin for PTY process: send Ctrl+D (0x04) instead";
            return Err(RpcError::new(Code::FailedPrecondition, message));
        }
        let _turn = self.turn.lock().await;
        let _pass = gate.pass().await;
        *self.current() = None;
        Ok(())
    }

    async fn write(&self, gate: &Gate, data: &Data) -> Result<(), RpcError> {
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
            written = self.write_in_turn(gate, data) => written,
            () = over => Err(RpcError::new(Code::Internal, "error writing input: the process has ended")),
        }
    }

    async fn write_in_turn(&self, gate: &Gate, data: &[u8]) -> Result<(), RpcError> {
        let _turn = self.turn.lock().await;
        let Some(pipe) = self.current().clone() else {
            return Err(RpcError::new(Code::FailedPrecondition, "stdin not enabled or closed"));
        };
        let written = pipe.write_all(gate, data).await;
        written.map_err(|error| RpcError::new(Code::Internal, format!("error writing input: {error}")))
    }

    /// The pipe that leads to the process. None if there is none, or if it is a terminal.
    pub(super) fn connection(&self) -> io::Result<Option<Connection>> {
        Ok(self.stdin().map(|pipe| connection::of_pipe(pipe.fd())).transpose()?)
    }

    /// The pipe and what is in it. The pipe is the same afterwards. Only for a process that is stopped.
    pub(super) fn save(&self) -> io::Result<Option<SavedInput>> {
        let Some(pipe) = self.stdin() else { return Ok(None) };
        let unread = take_unread(pipe.fd())?;
        self.put_back(&unread)?;
        Ok(Some(SavedInput { connection: connection::of_pipe(pipe.fd())?, unread: Base64(unread) }))
    }

    /// Writes to an empty pipe what an equal pipe had held: it fits.
    pub(super) fn put_back(&self, mut data: &[u8]) -> io::Result<()> {
        let Some(pipe) = self.stdin() else { return Ok(()) };
        while !data.is_empty() {
            match rustix::io::write(pipe.fd(), data) {
                Ok(written) => data = &data[written..],
                Err(Errno::INTR) => {}
                // Nobody will read it.
                Err(Errno::PIPE) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn stdin(&self) -> Option<Pipe> {
        self.current().clone().filter(|_| !self.is_terminal)
    }

    fn current(&self) -> MutexGuard<'_, Option<Pipe>> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads what a pipe holds, through its writing end.
fn take_unread(pipe: &OwnedFd) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let reading_end = rustix::fs::open(format!("/proc/self/fd/{}", pipe.as_raw_fd()), flags, Mode::empty())?;
    let (mut unread, mut buffer) = (Vec::new(), [0; 16 << 10]);
    loop {
        match rustix::io::read(&reading_end, &mut buffer) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(unread),
            Ok(length) => unread.extend_from_slice(&buffer[..length]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes once.
pub(crate) async fn send_input(
    processes: &Processes,
    request: SendInputRequest,
) -> Result<SendInputResponse, RpcError> {
    let process = processes.live(&request.process)?;
    write(processes, &process, &request.input).await?;
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
            (Some(Event::Data(data)), Some(process)) => write(processes, process, &data.input).await?,
            (Some(Event::Data(_)), None) => {
                return Err(RpcError::new(Code::InvalidArgument, "the first message must be start"));
            }
            (Some(Event::Keepalive(_)) | None, _) => {}
        }
    }
    Ok(StreamInputResponse {})
}

async fn write(processes: &Processes, process: &Process, input: &ProcessInput) -> Result<(), RpcError> {
    match &input.input {
        Some(data) => process.input.write(&processes.gate, data).await,
        None => Err(RpcError::new(Code::InvalidArgument, "input is empty")),
    }
}
