//! The calls of an agent and their results.

use std::time::Duration;

use isopod_guest_client::interpreter::CodeResult;
use isopod_store::ArtifactInfo;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::workspace::{RelPath, Skipped};

/// A tool call that runs something in the run's sandbox.
#[derive(Clone, Debug)]
pub(crate) struct ToolCall {
    pub(crate) action: Action,
    /// Written to the run's input before the call.
    pub(crate) files: Vec<(RelPath, Vec<u8>)>,
    /// How long it may run.
    pub(crate) timeout: Duration,
    /// The calling agent, which is recorded with the artifacts.
    pub(crate) agent: Option<String>,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Code for the interpreter, which keeps the state of earlier code.
    Code { code: String, language: Option<String> },
    /// A shell command.
    Command { line: String },
}

impl Action {
    /// The tool and its arguments, for logs.
    pub(crate) fn shown(&self) -> (&'static str, Value) {
        match self {
            Self::Code { code, language: None } => ("execute_python", json!({ "code": code })),
            Self::Code { code, language } => ("execute_code", json!({ "code": code, "language": language })),
            Self::Command { line } => ("run_command", json!({ "command": line })),
        }
    }
}

pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// What became of a call. A failure of the code is a result too.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ToolResult {
    pub(crate) success: bool,
    /// The text for the agent if it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) result: Option<String>,
    /// The text for the agent if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) error: Option<String>,
    /// The output before the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) logs: Option<String>,
    pub(crate) files_generated: Vec<String>,
    pub(crate) artifacts: Vec<ArtifactInfo>,
    pub(crate) output: ToolOutput,
    pub(crate) sandbox_id: String,
    /// The run had another sandbox before, which is gone with everything in it.
    pub(crate) restarted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) previous_sandbox_id: Option<String>,
    pub(crate) restarts: u32,
    pub(crate) sync: SyncReport,
}

/// What ran wrote and showed, in its parts.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct ToolOutput {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Some of the output was dropped because there was too much of it.
    pub(crate) truncated: bool,
    #[serde(serialize_with = "shown")]
    #[schema(value_type = Vec<Object>)]
    pub(crate) results: Vec<CodeResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) error: Option<ToolFailure>,
    /// The exit code, if it was a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) exit_code: Option<i32>,
}

/// How what ran has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ToolFailure {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) traceback: String,
}

/// What was moved into the sandbox and out of it.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct SyncReport {
    pub(crate) uploaded: u64,
    pub(crate) unchanged: u64,
    pub(crate) downloaded: u64,
    /// How long the transfers took.
    pub(crate) millis: f64,
    /// What was not transferred, and why.
    pub(crate) skipped: Vec<Skipped>,
}

fn shown<S: serde::Serializer>(results: &[CodeResult], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(results.iter().map(shown_result))
}

/// Only the formats that the result has.
fn shown_result(result: &CodeResult) -> Value {
    let forms = [
        ("text", &result.text),
        ("html", &result.html),
        ("markdown", &result.markdown),
        ("svg", &result.svg),
        ("png", &result.png),
        ("jpeg", &result.jpeg),
        ("pdf", &result.pdf),
        ("latex", &result.latex),
        ("javascript", &result.javascript),
    ];
    let mut shown = json!({ "is_main_result": result.is_main_result });
    for (name, form) in forms {
        if let Some(form) = form {
            shown[name] = json!(form);
        }
    }
    for (name, form) in [("json", &result.json), ("data", &result.data), ("chart", &result.chart)] {
        if let Some(form) = form {
            shown[name] = form.clone();
        }
    }
    if let Some(extra) = &result.extra {
        shown["extra"] = json!(extra);
    }
    shown
}
