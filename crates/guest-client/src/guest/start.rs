//! Starts processes.

use std::collections::BTreeMap;
use std::time::Duration;

use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::process::{PTY, ProcessConfig, StartRequest, StartResponse, pty};

use super::rpc::Options;
use super::{Guest, GuestError, Process};

/// What to start. Create one with [`StartProcess::new`] or [`StartProcess::shell`], or set the fields directly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartProcess {
    /// A path, or a name that is looked up in `PATH` inside the sandbox.
    pub cmd: String,
    /// The arguments.
    pub args: Vec<String>,
    /// Environment variables in addition to the sandbox's own.
    pub envs: BTreeMap<String, String>,
    /// The working directory. The default is the user's home or the template's working directory.
    pub cwd: Option<String>,
    /// The user. The default is the user of the [`Guest`], or else the sandbox's default user.
    pub user: Option<String>,
    /// Whether it gets standard input. Without, it reads end-of-file at once. A terminal always has input.
    pub stdin: bool,
    /// A terminal of that size instead of pipes. All output then arrives as [`Event::Pty`](super::Event::Pty).
    pub pty: Option<PtySize>,
    /// A name by which to find it.
    pub tag: Option<String>,
    /// When the guest kills it. Its stream then ends with [`Code::DeadlineExceeded`](super::Code::DeadlineExceeded).
    pub timeout: Option<Duration>,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtySize {
    /// Width.
    pub cols: u16,
    /// Height.
    pub rows: u16,
}

impl StartProcess {
    /// Starts this command without a shell.
    pub fn new(cmd: impl Into<String>) -> Self {
        Self { cmd: cmd.into(), ..Self::default() }
    }

    /// Runs a line in a login shell, as the official SDKs run commands.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new("/bin/bash").args(["-l", "-c"]).arg(line)
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args<T: Into<String>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.envs.insert(name.into(), value.into());
        self
    }

    /// Sets the working directory.
    pub fn cwd(mut self, cwd: impl Into<String>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Sets the user.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Gives it standard input, for [`ProcessHandle::send_stdin`](super::ProcessHandle::send_stdin).
    pub fn with_stdin(mut self) -> Self {
        self.stdin = true;
        self
    }

    /// Gives it a terminal.
    pub fn pty(mut self, size: PtySize) -> Self {
        self.pty = Some(size);
        self
    }

    /// Sets its tag.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Limits its running time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn into_request(self) -> StartRequest {
        let config =
            ProcessConfig { cmd: self.cmd, args: self.args, envs: self.envs.into_iter().collect(), cwd: self.cwd };
        StartRequest {
            process: MessageField::some(config),
            pty: self.pty.map_or_else(MessageField::none, |size| MessageField::some(size.into())),
            tag: self.tag,
            stdin: Some(self.stdin),
        }
    }
}

/// A line for the shell.
impl From<&str> for StartProcess {
    fn from(line: &str) -> Self {
        Self::shell(line)
    }
}

impl From<PtySize> for PTY {
    fn from(size: PtySize) -> Self {
        let size = pty::Size { cols: size.cols.into(), rows: size.rows.into() };
        Self { size: MessageField::some(size) }
    }
}

impl Guest {
    /// Starts a process. It is running when this returns, and keeps running if the [`Process`] is dropped.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](super::Code::InvalidArgument) if the command or its directory does not exist.
    pub async fn start(&self, process: impl Into<StartProcess>) -> Result<Process, GuestError> {
        let mut process = process.into();
        let user = process.user.take().or_else(|| self.user.clone());
        let options = Options { user: user.as_deref(), deadline: process.timeout };
        let request = process.into_request();
        let messages = self.caller.stream::<_, StartResponse>("/process.Process/Start", options, &request).await?;
        Process::begin(self, messages.into()).await
    }
}
