//! `POST /api/v1/sandboxes/{id}/execute`: runs a command to its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use bytes::Bytes;
use isopod_api::{ApiError, Caller, JsonBody};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::names::checked_env;
use crate::Access;
use crate::Execution;
use crate::Service;
use crate::backend::{Command, CommandLine};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Execute)]
pub(super) struct ExecuteBody {
    /// A line for the shell. Either this or `argv` must be given.
    command: Option<String>,
    /// A program and its arguments.
    argv: Option<Vec<String>>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    user: Option<String>,
    stdin: Option<String>,
    /// Seconds.
    #[schema(minimum = 1, maximum = 86400)]
    timeout: Option<u64>,
}

/// What a command did.
#[derive(Serialize, ToSchema)]
#[schema(as = Execution)]
pub(super) struct ExecutionView {
    id: String,
    sandbox_id: String,
    stdout: String,
    stderr: String,
    exit_code: i32,
    status: String,
    timed_out: bool,
    /// Whether there was more output than fits here.
    truncated: bool,
    duration_ms: u64,
}

/// As much of each stream goes into an answer; more can be had by the streaming variant.
const MAX_OUTPUT: usize = 4 << 20;
const MAX_SECONDS: u64 = 24 * 3600;

pub(super) async fn execute(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<ExecuteBody>,
) -> Result<Json<ExecutionView>, ApiError> {
    let command = body.parse()?.checked(&service)?;
    let done = service.execute(&Access::from(&caller), &id, command).await?;
    Ok(Json(shown(done)))
}

impl ExecuteBody {
    pub(super) fn checked(self, service: &Service) -> Result<Command, ApiError> {
        let mut command = match (self.command, self.argv) {
            (Some(line), None) if !line.trim().is_empty() => Command::shell(line),
            (None, Some(argv)) if argv.first().is_some_and(|program| !program.is_empty()) => {
                let mut argv = argv.into_iter();
                Command::argv(argv.next().unwrap_or_default(), argv)
            }
            _ => return Err(ApiError::bad_request("send either command or argv, and not empty")),
        };
        let seconds = self.timeout.unwrap_or(service.config.command_timeout.as_secs());
        if seconds == 0 || seconds > MAX_SECONDS {
            return Err(ApiError::bad_request(format!("timeout must be 1 to {MAX_SECONDS} seconds")));
        }
        command.timeout = Duration::from_secs(seconds);
        command.env = checked_env(self.env.unwrap_or_default())?;
        command.cwd = self.cwd;
        command.user = self.user;
        command.stdin = self.stdin.map(Bytes::from);
        command.max_output = MAX_OUTPUT;
        refuse_zero_bytes(&command)?;
        Ok(command)
    }
}

fn refuse_zero_bytes(command: &Command) -> Result<(), ApiError> {
    let line = match &command.line {
        CommandLine::Shell(line) => vec![line.as_str()],
        CommandLine::Argv { program, arguments } => {
            std::iter::once(program).chain(arguments).map(String::as_str).collect()
        }
    };
    let others = [command.cwd.as_deref(), command.user.as_deref()];
    if line.into_iter().chain(others.into_iter().flatten()).any(|text| text.contains('\0')) {
        return Err(ApiError::bad_request("a command cannot contain zero bytes"));
    }
    Ok(())
}

fn shown(done: Execution) -> ExecutionView {
    let output = done.output;
    ExecutionView {
        id: done.id,
        sandbox_id: done.sandbox,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        exit_code: output.exit_code,
        status: output.status,
        timed_out: output.timed_out,
        truncated: output.truncated,
        duration_ms: u64::try_from(output.duration.as_millis()).unwrap_or(u64::MAX),
    }
}
