//! Where the service's sandboxes come from: this server's own node, or any E2B-compatible server.
//!
//! A [`Backend`] executes each call once. [`Resilient`] wraps one: it retries calls, stops using a backend that is
//! down, and gives every call a deadline. Access is checked by the service. A backend does not check who owns an id.
//!
//! ```text
//! service ── Resilient (deadline → breaker → retry) ──┬── LocalBackend ── Fleet ── node
//!                                                     └── RemoteBackend ── client ── E2B or a second `isopod serve`
//! ```

mod command;
mod error;
mod file;
mod guest_calls;
mod local;
mod remote;
mod resilient;
mod sandbox;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use isopod_guest_client::interpreter::{Executed, RunCode};
use isopod_guest_client::{MemoryBudget, Reservation};
use isopod_store::TeamId;
use isopod_wire::SandboxId;

pub use command::{Command, CommandEnd, CommandEvent, CommandLine, CommandStream, Output};
pub use error::{BackendError, Effect, ErrorKind, Place};
pub use file::{FileBody, FileRead};
pub use local::LocalBackend;
pub use remote::RemoteBackend;
pub use resilient::{BackendMetrics, BreakerConfig, BreakerState, ResilienceConfig, Resilient, Verb};
pub use sandbox::{BackendSandbox, BackendState, CREATE_LABEL, CreateKey, CreateKeyError, CreateSpec};

/// Creates sandboxes and works in them.
///
/// Every call may be dropped halfway. What it started may continue or not, but nothing of the caller is left behind.
#[async_trait]
pub trait Backend: Send + Sync + std::fmt::Debug + 'static {
    /// Its name in metrics and logs: `local` or `remote`.
    fn name(&self) -> &'static str;

    /// Creates a sandbox and waits until it replies. The same key creates at most one sandbox, as far as the backend
    /// can tell. A backend without support for keys labels the sandbox, so that it can be found. After a failure with
    /// unknown effect, there may be a sandbox, and [`Self::abandon`] ends it.
    async fn create(&self, spec: &CreateSpec) -> Result<BackendSandbox, BackendError>;

    /// Waits until a create of this template needs to wait for nothing more than its own sandbox, but not longer than a client
    /// usually waits for a response. Begins nothing. A template that can't be found is left to the create to refuse.
    async fn wait_for_template(&self, _team: &TeamId, _template: &str) -> Result<(), BackendError> {
        Ok(())
    }

    /// The current state of a sandbox.
    async fn status(&self, id: &SandboxId) -> Result<BackendSandbox, BackendError>;

    /// All live sandboxes whose metadata contains all of these pairs.
    async fn list(&self, metadata: &BTreeMap<String, String>) -> Result<Vec<BackendSandbox>, BackendError>;

    /// Starts a command and streams its events. If the stream is dropped, the command continues until its timeout.
    async fn start(&self, id: &SandboxId, command: Command) -> Result<CommandStream, BackendError>;

    /// Runs a command to its end and keeps its output, up to [`Command::max_output`].
    async fn execute(&self, id: &SandboxId, command: Command) -> Result<Output, BackendError> {
        self.execute_within(id, command, &mut MemoryBudget::unlimited().reserve()).await
    }

    /// Like [`Self::execute`], but also drops output that doesn't fit into this reservation.
    async fn execute_within(
        &self,
        id: &SandboxId,
        command: Command,
        memory: &mut Reservation,
    ) -> Result<Output, BackendError> {
        let max_bytes = command.max_output;
        self.start(id, command).await?.collect_within(max_bytes, memory).await
    }

    /// Runs code in the sandbox's interpreter to its end, within its timeout. Drops results that don't fit into this
    /// reservation or exceed the backend's own limit.
    async fn run_code(
        &self,
        _id: &SandboxId,
        _code: RunCode,
        _memory: &mut Reservation,
    ) -> Result<Executed, BackendError> {
        Err(BackendError::invalid(format!("the {} backend has no code interpreter", self.name())))
    }

    /// Whether a program in the sandbox listens on this port.
    async fn is_listening(&self, id: &SandboxId, port: u16) -> Result<bool, BackendError> {
        let mut connect =
            Command::argv("/bin/bash", ["-c", "exec 3<>\"/dev/tcp/127.0.0.1/$1\"", "bash", &port.to_string()]);
        connect.timeout = Duration::from_secs(5);
        Ok(self.execute(id, connect).await?.exit_code == 0)
    }

    /// The host name of a port. `None` if it is below this server's own domain.
    async fn host(&self, _id: &SandboxId, _port: u16) -> Result<Option<String>, BackendError> {
        Ok(None)
    }

    /// Writes a file as this user. Creates parent directories and replaces an existing file.
    async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        user: Option<&str>,
        contents: FileBody,
    ) -> Result<(), BackendError>;

    /// Opens a file for reading as this user.
    async fn read_file(&self, id: &SandboxId, path: &str, user: Option<&str>) -> Result<FileRead, BackendError>;

    /// Pauses a sandbox and keeps its memory. A paused one stays paused.
    async fn pause(&self, id: &SandboxId) -> Result<(), BackendError>;

    /// Resumes a paused sandbox, which then lives for at least the timeout. A running one keeps running.
    async fn resume(&self, id: &SandboxId, timeout: Duration) -> Result<BackendSandbox, BackendError>;

    /// Sets the remaining time of a running sandbox, which may be longer or shorter than before.
    async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<(), BackendError>;

    /// Ends a sandbox. Returns false if it was already gone, which is not an error.
    async fn destroy(&self, id: &SandboxId) -> Result<bool, BackendError>;

    /// Ends whatever an abandoned create has made. Returns how many sandboxes there were.
    async fn abandon(&self, key: &CreateKey) -> Result<usize, BackendError> {
        let made = self.list(&key.label()).await?;
        for sandbox in &made {
            self.destroy(&sandbox.id).await?;
        }
        Ok(made.len())
    }
}
