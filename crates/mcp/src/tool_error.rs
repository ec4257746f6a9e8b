//! Why a tool couldn't do what it was asked, in words for the model that asked.

use isopod_client::guest::{Code, GuestError};
use isopod_client::{ApiError, TransportError};
use isopod_wire::error_chain;
use rmcp::model::{CallToolResult, ContentBlock};

use crate::text::visible;

/// A failure of a tool, with what to do about it.
#[derive(Debug)]
pub(crate) struct ToolError {
    message: String,
    hint: Option<String>,
    /// What a command had written before it failed.
    output: Option<String>,
}

impl ToolError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, output: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn output(mut self, output: String) -> Self {
        self.output = (!output.is_empty()).then_some(output);
        self
    }

    pub(crate) fn cancelled() -> Self {
        Self::new("the call was cancelled")
    }

    pub(crate) fn into_result(self) -> CallToolResult {
        let mut text = format!("Error: {}", visible(&self.message));
        if let Some(hint) = &self.hint {
            text.push_str(&format!("\nHint: {hint}"));
        }
        if let Some(output) = &self.output {
            text.push_str(&format!("\nOutput until then:\n{output}"));
        }
        CallToolResult::error(vec![ContentBlock::text(text)])
    }

    /// The message and the hint on one line, for errors that have no other form.
    pub(crate) fn into_message(self) -> String {
        let hint = self.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
        visible(&format!("{}{hint}", self.message))
    }
}

impl From<ApiError> for ToolError {
    fn from(error: ApiError) -> Self {
        let hint = match &error {
            ApiError::Unauthorized { .. } => "the key is wrong or expired; ask the user to check E2B_API_KEY",
            ApiError::NotFound { .. } => "list_sandboxes shows the sandboxes that there are",
            ApiError::RateLimited { .. } => "kill_sandbox ends sandboxes that are not needed; then try again",
            ApiError::Unavailable { .. } => "try again in a moment",
            ApiError::Transport(error) => transport_hint(error),
            ApiError::Server { code: 403, .. } => "the user's key may not do this",
            _ => return Self::new(error_chain(&error)),
        };
        Self::new(error_chain(&error)).hint(hint)
    }
}

impl From<GuestError> for ToolError {
    fn from(error: GuestError) -> Self {
        let hint = match &error {
            GuestError::PortClosed { .. } => "the template has no code interpreter; use run_command",
            GuestError::Transport(error) => transport_hint(error),
            GuestError::SandboxNotRunning { .. } => "list_sandboxes shows the sandboxes that there are",
            _ => match error.code() {
                Some(Code::NotFound) => "list_files shows what is there; relative paths start at the user's home",
                Some(Code::PermissionDenied) => "run_command with user \"root\" can change it",
                Some(Code::ResourceExhausted) => "the sandbox's disk or memory is full; remove something",
                _ => return Self::new(error_chain(&error)),
            },
        };
        Self::new(error_chain(&error)).hint(hint)
    }
}

fn transport_hint(error: &TransportError) -> &'static str {
    match error {
        TransportError::Timeout { .. } | TransportError::Silent { .. } => "try again, or with a longer timeout_seconds",
        _ => "the server does not respond; sandboxes go on when it restarts, so try again in a moment",
    }
}
