//! `POST /runtime/{run_id}/execute`: runs code or a command in the run's sandbox. Creates the sandbox if there is none.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use isopod_api::{ApiError, Caller, JsonBody, audit::Subject};
use serde::Deserialize;
use utoipa::ToSchema;

use super::super::runtime_runs::refuse_ended;
use super::tool_log::CallLog;
use super::{parse_path, parse_run};
use crate::Agents;
use crate::sessions::{Action, RelPath, ToolCall, ToolResult, parse_timeout};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ToolCall)]
pub(super) struct ExecuteBody {
    /// Either this or `command` must be given.
    code: Option<String>,
    command: Option<String>,
    /// Of the code.
    language: Option<String>,
    #[serde(default)]
    files: Vec<FileBody>,
    /// Seconds.
    #[schema(exclusive_minimum = 0, maximum = 3600)]
    timeout: Option<f64>,
    #[schema(min_length = 1, max_length = 200)]
    agent_id: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewRunFile)]
struct FileBody {
    path: String,
    content: String,
    /// The encoding of `content`, for binary files.
    encoding: Option<Encoding>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = FileEncoding)]
enum Encoding {
    Base64,
    #[serde(rename = "utf-8")]
    Utf8,
}

pub(super) async fn execute(
    State(app): State<Arc<Agents>>,
    caller: Caller,
    Path(run_id): Path<String>,
    body: JsonBody<ExecuteBody>,
) -> Result<(Extension<Subject>, Json<ToolResult>), ApiError> {
    let run = parse_run(&run_id)?;
    let call = body.parse()?.checked()?;
    refuse_ended(&app, &caller, &run_id).await?;
    let agent = call.agent.clone();
    let (tool, arguments) = call.action.shown();
    let mut log = CallLog(app.runs.tool_log(&caller.team, &run, agent.as_deref(), tool, &arguments));
    let result = app.sessions.execute(&caller.team, &run, call, &mut log).await;
    log.end(&result);
    let result = result?;
    let subject = Subject { agent, ..Subject::sandbox(&result.sandbox_id) };
    Ok((Extension(subject), Json(result)))
}

impl ExecuteBody {
    fn checked(self) -> Result<ToolCall, ApiError> {
        let action = match (self.code, self.command, self.language) {
            (Some(code), None, language) => Action::Code { code, language },
            (None, Some(line), None) => Action::Command { line },
            (None, Some(_), Some(_)) => return Err(ApiError::bad_request("a command has no language")),
            _ => return Err(ApiError::bad_request("exactly one of code and command is needed")),
        };
        Ok(ToolCall {
            action,
            files: self.files.into_iter().map(FileBody::checked).collect::<Result<_, _>>()?,
            timeout: parse_timeout(self.timeout).map_err(ApiError::bad_request)?,
            agent: checked_agent(self.agent_id)?,
        })
    }
}

impl FileBody {
    fn checked(self) -> Result<(RelPath, Vec<u8>), ApiError> {
        let path = parse_path(&self.path)?;
        let contents = match self.encoding {
            Some(Encoding::Base64) => STANDARD
                .decode(&self.content)
                .map_err(|error| ApiError::bad_request(format!("{path}: the content is not base64: {error}")))?,
            Some(Encoding::Utf8) | None => self.content.into_bytes(),
        };
        Ok((path, contents))
    }
}

pub(super) fn checked_agent(agent: Option<String>) -> Result<Option<String>, ApiError> {
    match agent {
        Some(agent) if agent.is_empty() || agent.len() > 200 => {
            Err(ApiError::bad_request("agent_id must have 1 to 200 characters"))
        }
        agent => Ok(agent),
    }
}
