//! Twelve tools for an agent, in one sandbox for each execution, on an Isopod server.
//!
//! A result is what the server says: a JSON object with `success`, `ok`, `error` and the fields of the tool. A file that is
//! uploaded or downloaded is one of this machine, and travels as a stream. [`BlockingToolkit`] is the same for programs that
//! do not await.

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

/// How the tools of an execution behave. The defaults are the server's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolkitConfig {
    /// Seconds that the sandbox lives after the last call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
    /// When it is replaced; at most 24.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lifetime_hours: Option<f64>,
    /// What it is made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Make a new one when the last is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_reinitialize: Option<bool>,
    /// Only these tools; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include_tools: Vec<String>,
    /// Not these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude_tools: Vec<String>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolkitError {
    /// The server refused or could not be reached.
    #[error("the server did not do it")]
    Api(#[from] ApiError),
    /// The sandbox did not give or take a file.
    #[error("the sandbox did not do it")]
    Guest(#[from] GuestError),
    /// A file of this machine could not be read or written.
    #[error("could not {doing} {path}")]
    Local {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
}

/// The tools of one execution. Dropping it leaves the sandbox to its timeout; [`Toolkit::close`] ends it at once.
#[derive(Clone, Debug)]
pub struct Toolkit {
    client: Client,
    execution_id: String,
    patience: Duration,
}

const PATIENCE: Duration = Duration::from_secs(600);
const LEEWAY: Duration = Duration::from_secs(120);

impl Toolkit {
    /// Nothing is sent yet, and no sandbox is made before the first tool needs one.
    pub fn new(client: &Client, execution_id: impl Into<String>) -> Self {
        Self { client: client.clone(), execution_id: execution_id.into(), patience: PATIENCE }
    }

    /// How long a call may take: ten minutes unless said otherwise. It should be longer than the configured `timeout`,
    /// which ends code that runs too long.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Says how the tools behave from now on.
    ///
    /// # Errors
    /// When the configuration is out of bounds.
    pub async fn configure(&self, config: &ToolkitConfig) -> Result<(), ToolkitError> {
        self.client.call(Call::new(Method::PUT, self.url("")).json(config)).await?;
        Ok(())
    }

    /// The tools with the JSON schemas of their arguments, for a language model.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn schemas(&self) -> Result<Value, ToolkitError> {
        Ok(self.client.call(Call::new(Method::GET, "/api/v1/toolkit")).await?.parse()?)
    }

    /// Calls a tool by its name.
    ///
    /// # Errors
    /// When there is no such tool, the arguments are not its own, or no sandbox can be had. What goes wrong inside is a
    /// result.
    pub async fn call(&self, tool: &str, arguments: Value) -> Result<Value, ToolkitError> {
        let call = Call::new(Method::POST, self.url(&format!("/{}", encode(tool)))).json(&arguments);
        // What the command itself may take, and a sandbox before it.
        let own = arguments["timeout_seconds"].as_f64().and_then(|limit| Duration::try_from_secs_f64(limit).ok());
        let limit = self.patience.max(own.unwrap_or_default().saturating_add(LEEWAY));
        Ok(self.client.call_within(limit, call.once(None)).await?.parse()?)
    }

    /// Ends the sandbox. False when there was none.
    ///
    /// # Errors
    /// When the server cannot be asked.
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

    /// A result that did not come from a tool of the server.
    fn failed(message: String) -> Value {
        json!({ "success": false, "ok": false, "error": message })
    }
}
