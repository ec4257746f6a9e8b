//! The tools by name, and what every call does before and after its own work.

use std::sync::Arc;
use std::time::Duration;

use isopod_store::{ExecutionName, TeamId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::config::ToolkitConfig;
use super::errors::ToolError;
use super::sandbox::Held;
use crate::Agents;

/// One of the twelve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ToolName)]
pub(crate) enum Tool {
    RunPythonCode,
    RunCommand,
    GetSandboxStatus,
    RestartSandbox,
    UploadFile,
    DownloadFile,
    ListFiles,
    ReadFileContent,
    WriteFileContent,
    CreateDirectory,
    InstallPackage,
    GetSandboxUrl,
}

/// The tools of one execution.
#[derive(Clone, Debug)]
pub(crate) struct Toolkit {
    pub(crate) app: Arc<Agents>,
    pub(crate) team: TeamId,
    pub(crate) execution: ExecutionName,
    pub(crate) config: ToolkitConfig,
}

/// The fields of a tool's own result.
pub(super) type Fields = Map<String, Value>;

impl Tool {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        serde_json::from_value(Value::String(name.to_owned())).ok()
    }
}

impl Toolkit {
    /// Calls a tool. A failure in the sandbox is a result. An error means that there is no sandbox.
    pub(crate) async fn call(&self, tool: Tool, arguments: Value) -> Result<Value, ToolError> {
        match tool {
            Tool::GetSandboxStatus => {
                parse::<NoArguments>(arguments)?;
                self.status().await
            }
            Tool::RestartSandbox => {
                parse::<NoArguments>(arguments)?;
                self.restart().await
            }
            Tool::GetSandboxUrl => self.url(parse(arguments)?).await,
            Tool::RunPythonCode => {
                let arguments = parse(arguments)?;
                let limit = self.config.timeout();
                let held = self.hold(limit).await?;
                Ok(held.finish(limit, self.run_python_code(&held, arguments)).await)
            }
            Tool::RunCommand => {
                let arguments: super::code::CommandArguments = parse(arguments)?;
                let limit = arguments.timeout()?;
                let held = self.hold(limit).await?;
                Ok(held.finish(limit, self.run_command(&held, &arguments)).await)
            }
            Tool::InstallPackage => {
                let arguments: super::packages::PackageArguments = parse(arguments)?;
                arguments.check()?;
                let held = self.hold(super::packages::INSTALL_TIMEOUT).await?;
                Ok(held.finish(super::packages::INSTALL_TIMEOUT, self.install_package(&held, &arguments)).await)
            }
            Tool::UploadFile => {
                let arguments: super::files::UploadArguments = parse(arguments)?;
                let source = self.source_of(&arguments).await?;
                let held = self.hold(TRANSFER).await?;
                Ok(held.finish(TRANSFER, self.upload_file(&held, &arguments, source)).await)
            }
            Tool::DownloadFile => {
                let arguments: super::files::DownloadArguments = parse(arguments)?;
                let target = self.target_of(&arguments)?;
                let held = self.hold(TRANSFER).await?;
                Ok(held.finish(TRANSFER, self.download_file(&held, &arguments, target)).await)
            }
            Tool::ListFiles => {
                let arguments = parse(arguments)?;
                let held = self.hold(SHORT).await?;
                Ok(held.finish(SHORT, self.list_files(&held, arguments)).await)
            }
            Tool::ReadFileContent => {
                let arguments = parse(arguments)?;
                let held = self.hold(SHORT).await?;
                Ok(held.finish(SHORT, self.read_file_content(&held, arguments)).await)
            }
            Tool::WriteFileContent => {
                let arguments = parse(arguments)?;
                let held = self.hold(SHORT).await?;
                Ok(held.finish(SHORT, self.write_file_content(&held, arguments)).await)
            }
            Tool::CreateDirectory => {
                let arguments = parse(arguments)?;
                let held = self.hold(SHORT).await?;
                Ok(held.finish(SHORT, self.create_directory(&held, arguments)).await)
            }
        }
    }
}

const SHORT: Duration = Duration::from_secs(60);
const TRANSFER: Duration = Duration::from_secs(600);

/// How much longer than its work a call may take. What runs in the sandbox is stopped first, and its output may still
/// arrive.
const MARGIN: Duration = Duration::from_secs(30);

impl Held {
    /// Waits for the work and returns its result, with the fields that every result has.
    async fn finish(&self, limit: Duration, work: impl Future<Output = Result<Fields, ToolError>>) -> Value {
        let mut result = match in_time(limit, work).await {
            Ok(fields) => Value::Object(fields),
            Err(error) => json!({ "success": false, "error": error.message() }),
        };
        let is_ok = result["success"] == json!(true) && result["error"].is_null();
        result["ok"] = json!(is_ok);
        result["sandbox_id"] = json!(self.sandbox.id());
        result["restarted"] = json!(self.restarted_from.is_some());
        if let Some(old) = &self.restarted_from {
            result["old_sandbox_id"] = json!(old);
        }
        result
    }
}

/// Stops waiting for a sandbox that replies endlessly or very slowly.
pub(super) async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, ToolError> {
    let limit = limit + MARGIN;
    tokio::time::timeout(limit, work).await.unwrap_or(Err(ToolError::Late(limit)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArguments {}

fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments).map_err(|error| ToolError::Arguments(format!("invalid arguments: {error}")))
}

/// The fields of a JSON object.
pub(super) fn fields(value: Value) -> Fields {
    match value {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    }
}
