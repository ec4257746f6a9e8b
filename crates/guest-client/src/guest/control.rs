//! Controls a process (input, terminal size, signals) and lists processes.

use bytes::Bytes;
use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::process::process_input::Input;
use isopod_wire::rpc::process::process_selector::Selector;
use isopod_wire::rpc::process::{
    CloseStdinRequest, CloseStdinResponse, ListRequest, ListResponse, ProcessInput, ProcessSelector, SendInputRequest,
    SendInputResponse, SendSignalRequest, SendSignalResponse, Signal as WireSignal, UpdateRequest, UpdateResponse,
};

use super::{Guest, GuestError, PtySize};

/// The maximum amount of input in one message.
const PIECE: usize = 1 << 20;

/// Controls one process. Clones control the same one.
#[derive(Clone, Debug)]
pub struct ProcessHandle {
    guest: Guest,
    pid: u32,
}

/// The signals that a guest sends. They go to the whole process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Asks the process to end.
    Term,
    /// Ends the process.
    Kill,
}

/// A running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its pid inside the sandbox.
    pub pid: u32,
    /// The command.
    pub cmd: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its working directory, if one was set.
    pub cwd: Option<String>,
    /// Its tag, if it has one.
    pub tag: Option<String>,
}

impl ProcessHandle {
    pub(super) fn new(guest: Guest, pid: u32) -> Self {
        Self { guest, pid }
    }

    /// Its pid inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Writes to its standard input. Returns when the process's pipe has taken everything, however long that takes: if
    /// the process does not read, the writer waits until it ends.
    ///
    /// # Errors
    /// [`Code::FailedPrecondition`](super::Code::FailedPrecondition) if it has no standard input or that was closed;
    /// [`Code::NotFound`](super::Code::NotFound) when it has ended.
    pub async fn send_stdin(&self, bytes: impl Into<Bytes>) -> Result<(), GuestError> {
        self.send(bytes.into(), Input::Stdin).await
    }

    /// Writes to its terminal. Waits like [`Self::send_stdin`].
    ///
    /// # Errors
    /// [`Code::FailedPrecondition`](super::Code::FailedPrecondition) if it has no terminal.
    pub async fn send_pty(&self, bytes: impl Into<Bytes>) -> Result<(), GuestError> {
        self.send(bytes.into(), Input::Pty).await
    }

    /// Closes its standard input.
    ///
    /// # Errors
    /// [`Code::NotFound`](super::Code::NotFound) if it has ended.
    pub async fn close_stdin(&self) -> Result<(), GuestError> {
        let request = CloseStdinRequest { process: MessageField::some(self.selector()) };
        // It is queued behind input that is still being written, so it may take as long as that.
        let _: CloseStdinResponse =
            self.guest.caller.unary_unlimited("/process.Process/CloseStdin", self.guest.options(), &request).await?;
        Ok(())
    }

    /// Changes the size of its terminal.
    ///
    /// # Errors
    /// [`Code::FailedPrecondition`](super::Code::FailedPrecondition) if it has none.
    pub async fn resize(&self, size: PtySize) -> Result<(), GuestError> {
        let request =
            UpdateRequest { process: MessageField::some(self.selector()), pty: MessageField::some(size.into()) };
        let _: UpdateResponse =
            self.guest.caller.unary("/process.Process/Update", self.guest.options(), &request).await?;
        Ok(())
    }

    /// Sends a signal. Returns false if the process has already ended.
    ///
    /// # Errors
    /// If the guest cannot be reached.
    pub async fn signal(&self, signal: Signal) -> Result<bool, GuestError> {
        let signal = match signal {
            Signal::Term => WireSignal::SIGNAL_SIGTERM,
            Signal::Kill => WireSignal::SIGNAL_SIGKILL,
        };
        let request = SendSignalRequest { process: MessageField::some(self.selector()), signal: signal.into() };
        let sent: Result<SendSignalResponse, _> =
            self.guest.caller.unary("/process.Process/SendSignal", self.guest.options(), &request).await;
        match sent {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn send(&self, mut bytes: Bytes, input: fn(Bytes) -> Input) -> Result<(), GuestError> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE));
            let input = ProcessInput { input: Some(input(piece)) };
            let request =
                SendInputRequest { process: MessageField::some(self.selector()), input: MessageField::some(input) };
            let _: SendInputResponse =
                self.guest.caller.unary_unlimited("/process.Process/SendInput", self.guest.options(), &request).await?;
        }
        Ok(())
    }

    pub(super) fn guest(&self) -> &Guest {
        &self.guest
    }

    pub(super) fn selector(&self) -> ProcessSelector {
        ProcessSelector { selector: Some(Selector::Pid(self.pid)) }
    }
}

impl Guest {
    /// Lists the running processes that clients started.
    ///
    /// # Errors
    /// If the guest cannot be reached.
    pub async fn list_processes(&self) -> Result<Vec<ProcessInfo>, GuestError> {
        let reply: ListResponse = self.caller.unary("/process.Process/List", self.options(), &ListRequest {}).await?;
        let info = |process: isopod_wire::rpc::process::ProcessInfo| {
            let config = process.config.into_option().unwrap_or_default();
            ProcessInfo { pid: process.pid, cmd: config.cmd, args: config.args, cwd: config.cwd, tag: process.tag }
        };
        Ok(reply.processes.into_iter().map(info).collect())
    }

    /// Returns a handle to control a process without reading its events.
    pub fn process(&self, pid: u32) -> ProcessHandle {
        ProcessHandle::new(self.clone(), pid)
    }
}
