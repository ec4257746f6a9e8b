//! Where the service's sandboxes come from: this server's own node, or any E2B-compatible server.
//!
//! A [`Backend`] does what it is told, once. [`Resilient`] goes around one: it repeats what may be repeated, stops asking
//! a backend that is down, and gives every call a deadline. Who may do what is decided above; ids are not checked for
//! their owner here.
//!
//! ```text
//! service ── Resilient (deadline → breaker → retry) ──┬── LocalBackend ── Fleet ── node
//!                                                     └── RemoteBackend ── client ── E2B or a second `isopod serve`
//! ```

mod command;
mod error;
mod file;
mod inside;
mod local;
mod remote;
mod resilient;
mod sandbox;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use isopod_wire::SandboxId;

pub use command::{Command, CommandEnd, CommandEvent, CommandLine, CommandStream, Output};
pub use error::{BackendError, Effect, ErrorKind, Place};
pub use file::{FileBody, FileRead};
pub use local::LocalBackend;
pub use remote::RemoteBackend;
pub use resilient::{BackendMetrics, BreakerConfig, BreakerState, ResilienceConfig, Resilient, Verb};
pub use sandbox::{BackendSandbox, BackendState, CREATE_LABEL, CreateKey, CreateKeyError, CreateSpec};

/// Makes sandboxes and works in them.
///
/// Every call may be dropped half-way; what it began then goes on or not, but nothing of the caller's is left behind.
#[async_trait]
pub trait Backend: Send + Sync + std::fmt::Debug + 'static {
    /// What it is called in metrics and logs: `local` or `remote`.
    fn name(&self) -> &'static str;

    /// Makes a sandbox and waits until it answers. The same key makes one sandbox at most, as far as the backend can tell:
    /// one that knows no keys labels the sandbox, so that it can be found. After a failure whose effect is unknown there may
    /// be one; [`Self::abandon`] ends it.
    async fn create(&self, spec: &CreateSpec) -> Result<BackendSandbox, BackendError>;

    /// How a sandbox is now.
    async fn status(&self, id: &SandboxId) -> Result<BackendSandbox, BackendError>;

    /// All live sandboxes whose metadata has all of these pairs.
    async fn list(&self, metadata: &BTreeMap<String, String>) -> Result<Vec<BackendSandbox>, BackendError>;

    /// Starts a command and tells what it does. It goes on when the stream is dropped, until its time is over.
    async fn start(&self, id: &SandboxId, command: Command) -> Result<CommandStream, BackendError>;

    /// Runs a command to its end and keeps what it writes, up to [`Command::most_output`].
    async fn execute(&self, id: &SandboxId, command: Command) -> Result<Output, BackendError> {
        let most = command.most_output;
        self.start(id, command).await?.collect(most).await
    }

    /// Writes a file in this user's name: the directories above it are made, what was there is replaced.
    async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        user: Option<&str>,
        contents: FileBody,
    ) -> Result<(), BackendError>;

    /// Opens a file for reading in this user's name.
    async fn read_file(&self, id: &SandboxId, path: &str, user: Option<&str>) -> Result<FileRead, BackendError>;

    /// Stops a sandbox and keeps it with its memory. One that is paused already stays so.
    async fn pause(&self, id: &SandboxId) -> Result<(), BackendError>;

    /// Lets a paused sandbox run again; it then lives at least so long. One that runs goes on running.
    async fn resume(&self, id: &SandboxId, timeout: Duration) -> Result<BackendSandbox, BackendError>;

    /// Lets a running sandbox live so long from now, be that longer or shorter than before.
    async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<(), BackendError>;

    /// Ends a sandbox. False when it was gone already, which is fine.
    async fn destroy(&self, id: &SandboxId) -> Result<bool, BackendError>;

    /// Ends whatever a create has made that nobody waits for any more. Says how many there were.
    async fn abandon(&self, key: &CreateKey) -> Result<usize, BackendError> {
        let made = self.list(&key.label()).await?;
        for sandbox in &made {
            self.destroy(&sandbox.id).await?;
        }
        Ok(made.len())
    }
}
