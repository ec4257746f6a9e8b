//! One sandbox as a tool of an agent: create it, write files, run code or commands, and end it whatever happens.
//!
//! A tool has one sandbox at a time. Creating another one ends the previous one, so that none is leaked.
//! [`SandboxTool::scope`] ends the sandbox when the work is done, fails or is dropped.
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
//!     // A shell command; `run_code` takes Python.
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

/// The lifetime of a sandbox that is not closed.
const LIFE: Duration = Duration::from_secs(600);
/// The time limit of code and commands.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A sandbox for an agent.
#[derive(Debug)]
pub struct SandboxTool {
    client: Client,
    life: Duration,
    patience: Duration,
    sandbox: Option<Sandbox>,
}

/// The result of code or a command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolResult {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// The error, if it failed.
    pub error: Option<String>,
    /// What code displayed; empty for commands.
    pub results: Vec<CodeResult>,
}

/// Why an operation of the tool failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// There is no sandbox yet, or it was closed.
    #[error("there is no sandbox; call create_sandbox first")]
    NoSandbox,
    /// The input is invalid.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// The server refused or failed.
    #[error("the request to the server failed")]
    Server(#[from] ApiError),
    /// The sandbox refused or failed.
    #[error("the request to the sandbox failed")]
    Sandbox(#[from] GuestError),
}

impl SandboxTool {
    /// Creates a tool without a sandbox.
    pub fn new(client: Client) -> Self {
        Self { client, life: LIFE, patience: TIMEOUT, sandbox: None }
    }

    /// Sets the lifetime of a sandbox that is not closed. The default is ten minutes.
    pub fn life(mut self, life: Duration) -> Self {
        self.life = life;
        self
    }

    /// Sets the time limit of code and commands. The default is five minutes.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Creates a sandbox, runs `work` with it, and ends it.
    ///
    /// # Errors
    /// If the sandbox cannot be created or ended, and the errors of `work`.
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

    /// Creates a sandbox. Ends the previous one.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such template. If the server is busy, the request is retried for a while.
    pub async fn create_sandbox(&mut self, template: &str) -> Result<&SandboxId, ToolError> {
        if template.is_empty() {
            return Err(ToolError::Empty("the template"));
        }
        self.close().await?;
        let wanted = NewSandbox::new(template).timeout(self.life).idempotency_key(new_key());
        let sandbox = self.client.create(wanted).await?;
        Ok(self.sandbox.insert(sandbox).id())
    }

    /// Returns the sandbox.
    ///
    /// # Errors
    /// [`ToolError::NoSandbox`] if there is none.
    pub fn sandbox(&self) -> Result<&Sandbox, ToolError> {
        self.sandbox.as_ref().ok_or(ToolError::NoSandbox)
    }

    /// Writes files, one after the other. All of them exist when this returns. Paths are relative to the user's home.
    ///
    /// # Errors
    /// If one cannot be written. Those before it are written.
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

    /// Runs Python and keeps its state for the next call. For shell commands, use [`Self::run_command`].
    ///
    /// # Errors
    /// If it could not be run or took too long. An exception of the code is in the result.
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

    /// Runs a shell command.
    ///
    /// # Errors
    /// If it could not be run or took too long. The status of a failed command is in the result.
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
    /// If the server could not be reached. The tool then keeps the sandbox.
    pub async fn close(&mut self) -> Result<(), ToolError> {
        if let Some(sandbox) = &self.sandbox {
            sandbox.kill().await?;
            self.sandbox = None;
        }
        Ok(())
    }
}

impl Drop for SandboxTool {
    /// Ends the sandbox in the background if it was not closed. Without a runtime, the sandbox ends at its timeout.
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { sandbox.kill().await });
        }
    }
}

impl ToolResult {
    /// Returns a text for an agent: the error, or the output, or a confirmation.
    pub fn text(&self) -> String {
        match &self.error {
            Some(error) => format!("Error: {error}"),
            None if self.stdout.is_empty() => "Task completed successfully".to_owned(),
            None => self.stdout.clone(),
        }
    }
}

/// Returns a key that is unique on this machine, from the time and a counter.
fn new_key() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    format!("tool-{}-{now}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
