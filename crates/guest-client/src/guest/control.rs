//! Acting on a process: input, size of the terminal, signals; and which processes there are.

use bytes::Bytes;
use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::process::process_input::Input;
use isopod_wire::rpc::process::process_selector::Selector;
use isopod_wire::rpc::process::{
    CloseStdinRequest, CloseStdinResponse, ListRequest, ListResponse, ProcessInput, ProcessSelector, SendInputRequest,
    SendInputResponse, SendSignalRequest, SendSignalResponse, Signal as WireSignal, UpdateRequest, UpdateResponse,
};

use super::{Guest, GuestError, PtySize};

/// How much input goes into one message.
const PIECE: usize = 1 << 20;

/// Acts on one process. Clones act on the same one.
#[derive(Clone, Debug)]
pub struct ProcessHandle {
    guest: Guest,
    pid: u32,
}

/// The signals that a guest sends. They go to the whole process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Asks to end.
    Term,
    /// Ends.
    Kill,
}

/// A process that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its number inside the sandbox.
    pub pid: u32,
    /// What was started.
    pub cmd: String,
    /// With which arguments.
    pub args: Vec<String>,
    /// Where, if that was said.
    pub cwd: Option<String>,
    /// Under which name, if any.
    pub tag: Option<String>,
}

impl ProcessHandle {
    pub(super) fn new(guest: Guest, pid: u32) -> Self {
        Self { guest, pid }
    }

    /// Its number inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Writes to its standard input. Returns when the process's pipe has taken it all, however long that is: a process
    /// that does not read makes its writer wait, until it ends.
    ///
    /// # Errors
    /// [`Code::FailedPrecondition`](super::Code::FailedPrecondition) when it has no standard input or that was closed;
    /// [`Code::NotFound`](super::Code::NotFound) when it has ended.
    pub async fn send_stdin(&self, bytes: impl Into<Bytes>) -> Result<(), GuestError> {
        self.send(bytes.into(), Input::Stdin).await
    }

    /// Types into its terminal. Waits like [`Self::send_stdin`].
    ///
    /// # Errors
    /// [`Code::FailedPrecondition`](super::Code::FailedPrecondition) when it has no terminal.
    pub async fn send_pty(&self, bytes: impl Into<Bytes>) -> Result<(), GuestError> {
        self.send(bytes.into(), Input::Pty).await
    }

    /// Lets it read the end of its standard input.
    ///
    /// # Errors
    /// [`Code::NotFound`](super::Code::NotFound) when it has ended.
    pub async fn close_stdin(&self) -> Result<(), GuestError> {
        let request = CloseStdinRequest { process: MessageField::some(self.selector()) };
        // It takes its turn behind input that is still on its way, so it may wait as long as that.
        let _: CloseStdinResponse =
            self.guest.caller.unary_unlimited("/process.Process/CloseStdin", self.guest.options(), &request).await?;
        Ok(())
    }

    /// Changes the size of its terminal.
    ///
    /// # Errors
    /// [`Code::FailedPrecondition`](super::Code::FailedPrecondition) when it has none.
    pub async fn resize(&self, size: PtySize) -> Result<(), GuestError> {
        let request =
            UpdateRequest { process: MessageField::some(self.selector()), pty: MessageField::some(size.into()) };
        let _: UpdateResponse =
            self.guest.caller.unary("/process.Process/Update", self.guest.options(), &request).await?;
        Ok(())
    }

    /// Sends a signal. False when the process has already ended.
    ///
    /// # Errors
    /// When the guest cannot be reached.
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
    /// The processes that clients started and that run now.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub async fn list_processes(&self) -> Result<Vec<ProcessInfo>, GuestError> {
        let reply: ListResponse = self.caller.unary("/process.Process/List", self.options(), &ListRequest {}).await?;
        let info = |process: isopod_wire::rpc::process::ProcessInfo| {
            let config = process.config.into_option().unwrap_or_default();
            ProcessInfo { pid: process.pid, cmd: config.cmd, args: config.args, cwd: config.cwd, tag: process.tag }
        };
        Ok(reply.processes.into_iter().map(info).collect())
    }

    /// Acts on a process whose events somebody else reads.
    pub fn process(&self, pid: u32) -> ProcessHandle {
        ProcessHandle::new(self.clone(), pid)
    }
}
