//! The descriptions and parameters of the tools, for language models.

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::tool::Tool;

/// A tool with the JSON schema of its arguments.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolSchema {
    name: Tool,
    description: String,
    #[schema(value_type = Object)]
    parameters: Value,
}

pub(crate) fn schemas() -> Vec<ToolSchema> {
    let text = |what: &str| json!({ "type": "string", "description": what });
    let path = || text("Path in the sandbox");
    vec![
        tool(
            Tool::RunPythonCode,
            "Runs Python code in the execution's sandbox. Variables stay for the next call.",
            json!({ "code": text("The code") }),
            &["code"],
        ),
        tool(
            Tool::RunCommand,
            "Runs a shell command in the sandbox and waits for its end.",
            json!({ "command": text("The command"),
                "timeout_seconds": { "type": "number", "exclusiveMinimum": 0, "maximum": 86400, "default": 60 } }),
            &["command"],
        ),
        tool(
            Tool::GetSandboxStatus,
            "Reports whether there is a sandbox, how long it has been running, and the health of the workspace.",
            json!({}),
            &[],
        ),
        tool(
            Tool::RestartSandbox,
            "Replaces the sandbox with a fresh one. All state in it is lost; the workspace stays.",
            json!({}),
            &[],
        ),
        tool(
            Tool::UploadFile,
            "Copies a file of the execution's workspace, or the given bytes, into the sandbox.",
            json!({ "local_path": text("Key or path in the workspace; only a name if content_base64 is given"),
                "remote_path": path(), "content_base64": text("The bytes, instead of a file of the workspace") }),
            &["local_path", "remote_path"],
        ),
        tool(
            Tool::DownloadFile,
            "Copies a file of the sandbox into the execution's workspace, or into the result.",
            json!({ "remote_path": path(), "local_path": text("Key or path in the workspace; if omitted, the bytes are in content_base64") }),
            &["remote_path"],
        ),
        tool(
            Tool::ListFiles,
            "Lists a directory of the sandbox as `ls -la` does.",
            json!({ "directory": { "type": "string", "default": "/home/user" } }),
            &[],
        ),
        tool(
            Tool::ReadFileContent,
            "Reads a file of the sandbox. Binary contents are in content_base64.",
            json!({ "path": path() }),
            &["path"],
        ),
        tool(
            Tool::WriteFileContent,
            "Writes a text file in the sandbox. Creates its parent directories.",
            json!({ "path": path(), "content": text("The text") }),
            &["path", "content"],
        ),
        tool(
            Tool::CreateDirectory,
            "Creates a directory in the sandbox, and its parents.",
            json!({ "path": path() }),
            &["path"],
        ),
        tool(
            Tool::InstallPackage,
            "Installs a Python package in the sandbox with pip, within two minutes.",
            json!({ "package": text("One requirement, such as pandas==2.0.0") }),
            &["package"],
        ),
        tool(
            Tool::GetSandboxUrl,
            "Returns the host name of a port of the sandbox.",
            json!({ "port": { "type": "integer", "minimum": 1, "maximum": 65535, "default": 8000 } }),
            &[],
        ),
    ]
}

fn tool(name: Tool, description: &str, properties: Value, required: &[&str]) -> ToolSchema {
    let parameters = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    ToolSchema { name, description: description.to_owned(), parameters }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_twelve_tools_and_each_can_be_called_by_its_name() {
        let all = json!(schemas());
        let names: Vec<&str> = all.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), 12);
        assert!(names.iter().all(|name| Tool::parse(name).is_some()), "{names:?}");
        assert_eq!(Tool::parse("rm_rf"), None);
    }
}
