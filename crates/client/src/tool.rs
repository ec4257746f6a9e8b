//! One sandbox as a tool of an agent: make it, put files in, run code or commands, and end it whatever happens.
//!
//! A tool has one sandbox at a time. Making another ends the one before, so none is lost; [`SandboxTool::scope`] ends it
//! when the work is done, fails or is dropped half-way through an error.
//!
//! ```no_run
//! use isopod_client::tool::{SandboxTool, ToolError};
//! use isopod_client::{Client, ClientConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(ClientConfig {
//!     api_url: "http://localhost:3000".into(),
//!     api_key: "e2b_0123456789".into(),
//!     sandbox_url: Some("http://localhost:3000".into()),
//!     domain: None,
//! })?;
//! let text = SandboxTool::scope(client, "python3", async |tool| {
//!     tool.write_files([("app.py", "print('Hello from a sandbox!')")]).await?;
//!     // A line for the shell; `run_code` takes Python.
//!     Ok::<_, ToolError>(tool.run_command("python3 app.py").await?.text())
//! })
//! .await?;
//! assert_eq!(text, "Hello from a sandbox!\n");
//! # Ok(())
//! # }
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use isopod_guest_client::guest::{GuestError, StartProcess, Upload};
use isopod_guest_client::interpreter::{CodeResult, RunCode};
use isopod_wire::SandboxId;

use crate::sandbox::{ApiError, Client, NewSandbox, Sandbox};

/// How long a sandbox lives when nobody closes it.
const LIFE: Duration = Duration::from_secs(600);
/// How long code or a command may run.
const PATIENCE: Duration = Duration::from_secs(300);

/// A sandbox for an agent.
#[derive(Debug)]
pub struct SandboxTool {
    client: Client,
    life: Duration,
    patience: Duration,
    sandbox: Option<Sandbox>,
}

/// What code or a command gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolResult {
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// How it failed, if it did.
    pub error: Option<String>,
    /// What code showed; empty for commands.
    pub results: Vec<CodeResult>,
}

/// Why the tool could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// There is no sandbox yet, or it was closed.
    #[error("there is no sandbox; call create_sandbox first")]
    NoSandbox,
    /// The input cannot be right.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// The server refused or failed.
    #[error("the server did not do it")]
    Server(#[from] ApiError),
    /// Something inside the sandbox refused or failed.
    #[error("the sandbox did not do it")]
    Sandbox(#[from] GuestError),
}

impl SandboxTool {
    /// A tool without a sandbox.
    pub fn new(client: Client) -> Self {
        Self { client, life: LIFE, patience: PATIENCE, sandbox: None }
    }

    /// How long a sandbox lives when nobody closes it. The default is ten minutes.
    pub fn life(mut self, life: Duration) -> Self {
        self.life = life;
        self
    }

    /// How long code or a command may run. The default is five minutes.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Makes a sandbox, lets `work` use it, and ends it.
    ///
    /// # Errors
    /// When the sandbox cannot be made or ended, and whatever `work` gives.
    pub async fn scope<T, E: From<ToolError>>(
        client: Client,
        template: &str,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut tool = Self::new(client);
        tool.create_sandbox(template).await?;
        let done = work(&mut tool).await;
        let closed = tool.close().await;
        let given = done?;
        closed?;
        Ok(given)
    }

    /// Makes a sandbox. The one before is ended.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when there is no such template. A server that is busy is asked again for a while.
    pub async fn create_sandbox(&mut self, template: &str) -> Result<&SandboxId, ToolError> {
        if template.is_empty() {
            return Err(ToolError::Empty("the template"));
        }
        self.close().await?;
        let wanted = NewSandbox::new(template).timeout(self.life).idempotency_key(new_key());
        let sandbox = self.client.create(wanted).await?;
        Ok(self.sandbox.insert(sandbox).id())
    }

    /// The sandbox.
    ///
    /// # Errors
    /// [`ToolError::NoSandbox`] when there is none.
    pub fn sandbox(&self) -> Result<&Sandbox, ToolError> {
        self.sandbox.as_ref().ok_or(ToolError::NoSandbox)
    }

    /// Writes files, one after the other: when this returns, all are there. Paths are relative to the user's home.
    ///
    /// # Errors
    /// When one cannot be written; those before it are there.
    pub async fn write_files<P: AsRef<str>, C: Into<Upload>>(
        &self,
        files: impl IntoIterator<Item = (P, C)>,
    ) -> Result<(), ToolError> {
        let sandbox = self.sandbox()?;
        for (path, content) in files {
            if path.as_ref().is_empty() {
                return Err(ToolError::Empty("the path of a file"));
            }
            sandbox.guest().write_file(path.as_ref(), content).await?;
        }
        Ok(())
    }

    /// Runs Python and keeps its state for the next call. A line for the shell is for [`Self::run_command`].
    ///
    /// # Errors
    /// When it could not be run or took too long. An exception of the code is in the result.
    pub async fn run_code(&self, code: &str) -> Result<ToolResult, ToolError> {
        let sandbox = self.sandbox()?;
        if code.trim().is_empty() {
            return Err(ToolError::Empty("the code"));
        }
        let code = RunCode::new(code).timeout(self.patience);
        let executed = sandbox.run_code(code).await?.collect().await?;
        let error = executed.error.map(|error| format!("{}: {}", error.name, error.value));
        Ok(ToolResult { stdout: executed.stdout, stderr: executed.stderr, error, results: executed.results })
    }

    /// Runs a line for the shell.
    ///
    /// # Errors
    /// When it could not be run or took too long. A command that fails has its status in the result.
    pub async fn run_command(&self, line: &str) -> Result<ToolResult, ToolError> {
        let sandbox = self.sandbox()?;
        if line.trim().is_empty() {
            return Err(ToolError::Empty("the command"));
        }
        let output = sandbox.guest().run(StartProcess::shell(line).timeout(self.patience)).await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let error = (!output.ended.is_success()).then(|| output.ended.status.clone());
        Ok(ToolResult { stdout: text(&output.stdout), stderr: text(&output.stderr), error, results: Vec::new() })
    }

    /// Ends the sandbox, if there is one.
    ///
    /// # Errors
    /// When the server could not be asked; the sandbox is then still the tool's.
    pub async fn close(&mut self) -> Result<(), ToolError> {
        if let Some(sandbox) = &self.sandbox {
            sandbox.kill().await?;
            self.sandbox = None;
        }
        Ok(())
    }
}

impl Drop for SandboxTool {
    /// Ends what was not closed, in the background. Where nothing can be awaited any more, the sandbox ends with its time.
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { sandbox.kill().await });
        }
    }
}

impl ToolResult {
    /// What an agent tells: the error, else what was written, else that it is done.
    pub fn text(&self) -> String {
        match &self.error {
            Some(error) => format!("Error: {error}"),
            None if self.stdout.is_empty() => "Task completed successfully".to_owned(),
            None => self.stdout.clone(),
        }
    }
}

/// Unlike any other of this machine: when, and the how manyth.
fn new_key() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    format!("tool-{}-{now}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
