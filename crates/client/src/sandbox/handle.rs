//! One sandbox with its tokens.

use std::fmt;
use std::time::Duration;

use isopod_guest_client::guest::{Guest, GuestError};
use isopod_guest_client::interpreter::{Execution, Interpreter, RunCode};
use isopod_guest_client::transport::Http;
use isopod_wire::{GUEST_PORT, INTERPRETER_PORT, SandboxId};
use serde::Deserialize;

use super::address::host;
use super::{ApiError, Client, NewSnapshot, SandboxDetail, SnapshotInfo};

/// A sandbox that was created or connected to. Dropping it leaves the sandbox running.
#[derive(Clone)]
pub struct Sandbox {
    client: Client,
    id: SandboxId,
    template: String,
    envd_version: String,
    domain: String,
    access_token: Option<String>,
    traffic_token: Option<String>,
    guest: Guest,
    interpreter: Interpreter,
}

/// The reply to create and connect.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Made {
    #[serde(rename = "sandboxID")]
    id: SandboxId,
    #[serde(rename = "templateID")]
    template: String,
    #[serde(default)]
    envd_version: String,
    envd_access_token: Option<String>,
    traffic_access_token: Option<String>,
    domain: Option<String>,
}

impl Sandbox {
    pub(super) fn from_made(client: &Client, made: Made) -> Result<Self, ApiError> {
        let domain = made.domain.filter(|domain| !domain.is_empty()).unwrap_or_else(|| client.domain().to_owned());
        let way = |port| -> Result<Http, ApiError> {
            let mut http = client
                .edge(&domain, &made.id, port)
                .map_err(|error| ApiError::Protocol(format!("the address of the sandbox is invalid: {error}")))?;
            http.show_tokens(made.envd_access_token.as_deref(), made.traffic_access_token.as_deref())
                .map_err(|_| ApiError::Protocol("a token has invalid characters".to_owned()))?;
            Ok(http)
        };
        Ok(Self {
            guest: Guest::over_http(way(GUEST_PORT)?),
            interpreter: Interpreter::over_http(way(INTERPRETER_PORT)?),
            client: client.clone(),
            id: made.id,
            template: made.template,
            envd_version: made.envd_version,
            access_token: made.envd_access_token,
            traffic_token: made.traffic_access_token,
            domain,
        })
    }

    /// Its id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The template that it was created from.
    pub fn template(&self) -> &str {
        &self.template
    }

    /// The protocol version of its guest.
    pub fn envd_version(&self) -> &str {
        &self.envd_version
    }

    /// The value of the header `e2b-traffic-access-token` for requests to its ports, if they are not public.
    pub fn traffic_token(&self) -> Option<&str> {
        self.traffic_token.as_deref()
    }

    /// The token that its files and processes require, if they require one. File URLs are signed with it.
    pub fn access_token(&self) -> Option<&str> {
        self.access_token.as_deref()
    }

    /// The same sandbox for another client, for example one with newer credentials.
    #[must_use]
    pub fn with_client(mut self, client: &Client) -> Self {
        self.client = client.clone();
        self
    }

    /// The host name of one of its ports.
    pub fn host(&self, port: u16) -> String {
        host(&self.domain, &self.id, port)
    }

    /// Its processes and files.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Its code interpreter, if its template has one.
    pub fn interpreter(&self) -> &Interpreter {
        &self.interpreter
    }

    /// Runs code in its interpreter.
    ///
    /// # Errors
    /// [`GuestError::PortClosed`] if it has none.
    pub async fn run_code(&self, code: impl Into<RunCode>) -> Result<Execution, GuestError> {
        self.interpreter.run(code).await
    }

    /// Returns all details.
    ///
    /// # Errors
    /// See [`Client::info`].
    pub async fn info(&self) -> Result<SandboxDetail, ApiError> {
        self.client.info(&self.id).await
    }

    /// Whether it is running now.
    ///
    /// # Errors
    /// If that cannot be determined.
    pub async fn is_running(&self) -> Result<bool, GuestError> {
        match self.guest.health().await {
            Ok(()) => Ok(true),
            Err(GuestError::SandboxNotRunning { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends it. Returns false if it had already ended.
    ///
    /// # Errors
    /// See [`Client::kill`].
    pub async fn kill(&self) -> Result<bool, ApiError> {
        self.client.kill(&self.id).await
    }

    /// Pauses it. Returns false if it was already paused.
    ///
    /// # Errors
    /// See [`Client::pause`].
    pub async fn pause(&self, keep_memory: bool) -> Result<bool, ApiError> {
        self.client.pause(&self.id, keep_memory).await
    }

    /// Takes a snapshot of it. It goes on.
    ///
    /// # Errors
    /// See [`Client::snapshot`].
    pub async fn snapshot(&self, new: &NewSnapshot) -> Result<SnapshotInfo, ApiError> {
        self.client.snapshot(&self.id, new).await
    }

    /// Creates copies of it. It goes on.
    ///
    /// # Errors
    /// See [`Client::fork`].
    pub async fn fork(&self, count: u32, timeout: Option<Duration>) -> Result<Vec<Result<Self, ApiError>>, ApiError> {
        self.client.fork(&self.id, count, timeout).await
    }

    /// Puts it back to a snapshot of it.
    ///
    /// # Errors
    /// See [`Client::rollback`].
    pub async fn rollback(&self, snapshot: &str) -> Result<(), ApiError> {
        self.client.rollback(&self.id, snapshot).await
    }

    /// Puts it back to the files of a snapshot of it, without the processes.
    ///
    /// # Errors
    /// See [`Client::rollback_files`].
    pub async fn rollback_files(&self, snapshot: &str) -> Result<(), ApiError> {
        self.client.rollback_files(&self.id, snapshot).await
    }

    /// Sets its lifetime from now.
    ///
    /// # Errors
    /// See [`Client::set_timeout`].
    pub async fn set_timeout(&self, timeout: Duration) -> Result<(), ApiError> {
        self.client.set_timeout(&self.id, timeout).await
    }
}

impl fmt::Debug for Sandbox {
    /// Does not print the tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("id", &self.id).field("template", &self.template).finish_non_exhaustive()
    }
}
