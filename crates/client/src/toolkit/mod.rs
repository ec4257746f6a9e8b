//! Twelve tools for an agent, in one sandbox for each execution, on an Isopod server.
//!
//! A result is the server's JSON object with `success`, `ok`, `error` and the fields of the tool. Uploads and downloads
//! transfer files of this machine as streams. [`BlockingToolkit`] is the same for programs without async code.

mod blocking;
mod tools;
mod transfer;

use std::time::Duration;

use http::Method;
use isopod_guest_client::guest::GuestError;
use isopod_guest_client::transport::encode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use blocking::BlockingToolkit;

use crate::sandbox::{ApiError, Call, Client};

/// The configuration of an execution's tools. The defaults are the server's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolkitConfig {
    /// The lifetime of the sandbox after the last call, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
    /// When the sandbox is replaced, in hours; at most 24.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lifetime_hours: Option<f64>,
    /// The template of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Whether to create a new sandbox if the last one is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_reinitialize: Option<bool>,
    /// The tools to enable. Empty enables all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include_tools: Vec<String>,
    /// The tools to disable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude_tools: Vec<String>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolkitError {
    /// The server refused or could not be reached.
    #[error("the request to the server failed")]
    Api(#[from] ApiError),
    /// The sandbox could not send or receive a file.
    #[error("the request to the sandbox failed")]
    Guest(#[from] GuestError),
    /// A local file could not be read or written.
    #[error("could not {doing} {path}")]
    Local {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
}

/// The tools of one execution. If it is dropped, the sandbox ends at its timeout. [`Toolkit::close`] ends it at once.
#[derive(Clone, Debug)]
pub struct Toolkit {
    client: Client,
    execution_id: String,
    patience: Duration,
}

const TIMEOUT: Duration = Duration::from_secs(600);
const LEEWAY: Duration = Duration::from_secs(120);

impl Toolkit {
    /// Sends nothing yet. The first tool that needs a sandbox creates it.
    pub fn new(client: &Client, execution_id: impl Into<String>) -> Self {
        Self { client: client.clone(), execution_id: execution_id.into(), patience: TIMEOUT }
    }

    /// Sets the time limit of a call. The default is ten minutes. It should be longer than the configured `timeout`,
    /// which ends code that runs too long.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Configures the tools.
    ///
    /// # Errors
    /// If the configuration is out of bounds.
    pub async fn configure(&self, config: &ToolkitConfig) -> Result<(), ToolkitError> {
        self.client.call(Call::new(Method::PUT, self.url("")).json(config)).await?;
        Ok(())
    }

    /// Returns the tools with the JSON schemas of their arguments, for a language model.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn schemas(&self) -> Result<Value, ToolkitError> {
        Ok(self.client.call(Call::new(Method::GET, "/api/v1/toolkit")).await?.parse()?)
    }

    /// Calls a tool by its name.
    ///
    /// # Errors
    /// If there is no such tool, the arguments are invalid, or no sandbox is available. Errors inside the sandbox are
    /// results.
    pub async fn call(&self, tool: &str, arguments: Value) -> Result<Value, ToolkitError> {
        let call = Call::new(Method::POST, self.url(&format!("/{}", encode(tool)))).json(&arguments);
        // The time limit of the command itself, plus time to create a sandbox.
        let own = arguments["timeout_seconds"].as_f64().and_then(|limit| Duration::try_from_secs_f64(limit).ok());
        let limit = self.patience.max(own.unwrap_or_default().saturating_add(LEEWAY));
        Ok(self.client.call_within(limit, call.once(None)).await?.parse()?)
    }

    /// Ends the sandbox. Returns false if there was none.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn close(&self) -> Result<bool, ToolkitError> {
        #[derive(Deserialize)]
        struct Ended {
            killed: bool,
        }
        match self.client.call(Call::new(Method::DELETE, self.url(""))).await {
            Ok(reply) => Ok(reply.parse::<Ended>()?.killed),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn url(&self, rest: &str) -> String {
        format!("/api/v1/executions/{}/toolkit{rest}", encode(&self.execution_id))
    }

    /// Returns a result that does not come from a tool of the server.
    fn failed(message: String) -> Value {
        json!({ "success": false, "ok": false, "error": message })
    }
}
