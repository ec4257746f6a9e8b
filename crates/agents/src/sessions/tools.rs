//! The tools for a language model: their schemas and what they do.

use std::sync::Arc;
use std::time::Duration;

use isopod_store::{Owner, TeamId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::files::FileError;
use super::output_sink::OutputSink;
use super::search::shown;
use super::tool::{Action, DEFAULT_TIMEOUT, ToolCall};
use super::workspace::RelPath;
use super::{SessionError, Sessions};

/// The longest time that one call may run.
pub(crate) const MAX_TIMEOUT: u64 = 3600;

/// The longest query of a search, in characters.
const MAX_QUERY: usize = 1000;

/// Why a tool returned no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UseError {
    #[error("Unknown tool: {0}")]
    Unknown(String),
    #[error("{0}")]
    Arguments(String),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// All tools, as shown to models.
fn schemas(has_search: bool) -> Value {
    let timeout = json!({ "type": "number", "description": "Seconds it may run, 300 by default",
        "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT });
    let filename = json!({ "type": "string", "description": "Path below the run's directory, such as data/x.csv" });
    let mut tools = json!([
        tool(
            "execute_python",
            "Run Python code. Variables, installed packages and files are kept from call to call. \
            Files in the working directory and plots come back as artifacts.",
            json!({ "code": { "type": "string", "description": "The code" }, "timeout": timeout }),
            &["code"]
        ),
        tool(
            "execute_code",
            "Run code in another language of the interpreter, such as javascript, bash or r.",
            json!({ "code": { "type": "string" }, "language": { "type": "string" }, "timeout": timeout }),
            &["code", "language"]
        ),
        tool(
            "run_command",
            "Run a shell command in the same sandbox, for example to install packages.",
            json!({ "command": { "type": "string", "description": "A line for bash" }, "timeout": timeout }),
            &["command"]
        ),
        tool(
            "read_file",
            "Read a text file of the run. Long files are truncated.",
            json!({ "filename": filename }),
            &["filename"]
        ),
        tool(
            "write_file",
            "Write a text file, which later code finds in its working directory.",
            json!({ "filename": filename, "content": { "type": "string" } }),
            &["filename", "content"]
        ),
        tool("list_files", "List the files of the run.", json!({}), &[]),
    ]);
    if let (Some(tools), true) = (tools.as_array_mut(), has_search) {
        let query =
            json!({ "type": "string", "description": "What to look for", "minLength": 1, "maxLength": MAX_QUERY });
        tools.push(tool("web_search", "Search the web.", json!({ "query": query }), &["query"]));
    }
    tools
}

fn tool(name: &str, description: &str, properties: Value, required: &[&str]) -> Value {
    json!({ "name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": required, "additionalProperties": false } })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CodeArguments {
    code: String,
    language: Option<String>,
    timeout: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandArguments {
    command: String,
    timeout: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadArguments {
    filename: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteArguments {
    filename: String,
    content: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchArguments {
    query: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArguments {}

impl Sessions {
    /// Calls a tool. The result is for the model, and so is the message that a file does not exist.
    pub(crate) async fn use_tool(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        name: &str,
        arguments: Value,
        agent: Option<String>,
        sink: &mut dyn OutputSink,
    ) -> Result<Value, UseError> {
        match name {
            "web_search" if self.search.is_some() => {
                let SearchArguments { query } = parse(arguments)?;
                self.web_search(&query).await
            }
            "execute_python" | "execute_code" => {
                let CodeArguments { code, language, timeout } = parse(arguments)?;
                let language = language.filter(|_| name == "execute_code");
                self.run_tool(team, owner, Action::Code { code, language }, timeout, agent, sink).await
            }
            "run_command" => {
                let CommandArguments { command, timeout } = parse(arguments)?;
                self.run_tool(team, owner, Action::Command { line: command }, timeout, agent, sink).await
            }
            "read_file" => {
                let path = parse_path(&parse::<ReadArguments>(arguments)?.filename)?;
                file_result(
                    self.read_text(team, owner, &path).await.map(|text| json!({ "success": true, "result": text })),
                )
            }
            "write_file" => {
                let WriteArguments { filename, content } = parse(arguments)?;
                let path = parse_path(&filename)?;
                file_result(self.write_text(team, owner, &path, content, agent).await.map(|artifact| {
                    json!({ "success": true, "result": format!("Wrote '{filename}'."),
                        "files_generated": [filename], "artifacts": [artifact] })
                }))
            }
            "list_files" => {
                let NoArguments {} = parse(arguments)?;
                let files = self.list_files(team, owner).await?;
                let names: Vec<&str> = files.iter().map(|file| file.filename.as_str()).collect();
                Ok(json!({ "success": true, "result": names, "files": files }))
            }
            other => Err(UseError::Unknown(other.chars().take(64).collect())),
        }
    }

    /// The tools of this server, as shown to models.
    pub(crate) fn tools(&self) -> Value {
        schemas(self.search.is_some())
    }

    /// Searches. A failure is a result too: the model can go on without it.
    async fn web_search(&self, query: &str) -> Result<Value, UseError> {
        let Some(search) = &self.search else { return Err(UseError::Unknown("web_search".to_owned())) };
        if query.trim().is_empty() || query.chars().count() > MAX_QUERY {
            return Err(UseError::Arguments(format!("query must have 1 to {MAX_QUERY} characters")));
        }
        Ok(match search.search(query).await {
            Ok(found) => json!({ "success": true, "result": shown(&found), "results": found }),
            Err(error) => {
                tracing::warn!(error = isopod_wire::error_chain(&error), "a web search failed");
                json!({ "success": false, "error": format!("Search failed: {error}") })
            }
        })
    }

    async fn run_tool(
        self: &Arc<Self>,
        team: &TeamId,
        owner: &Owner,
        action: Action,
        timeout: Option<f64>,
        agent: Option<String>,
        sink: &mut dyn OutputSink,
    ) -> Result<Value, UseError> {
        let timeout = parse_timeout(timeout).map_err(UseError::Arguments)?;
        let result = self.execute(team, owner, ToolCall { action, files: Vec::new(), timeout, agent }, sink).await?;
        Ok(serde_json::to_value(result).expect("a result serialises to JSON"))
    }
}

/// Parses a timeout within the limits of one call.
pub(crate) fn parse_timeout(seconds: Option<f64>) -> Result<Duration, String> {
    let Some(seconds) = seconds else { return Ok(DEFAULT_TIMEOUT) };
    match seconds > 0.0 && seconds <= MAX_TIMEOUT as f64 {
        true => Ok(Duration::from_secs_f64(seconds).max(Duration::from_millis(1))),
        false => Err(format!("timeout must be more than 0 and at most {MAX_TIMEOUT} seconds")),
    }
}

fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, UseError> {
    serde_json::from_value(arguments).map_err(|error| UseError::Arguments(format!("invalid arguments: {error}")))
}

fn parse_path(filename: &str) -> Result<RelPath, UseError> {
    RelPath::parse(filename).map_err(|error| UseError::Arguments(error.to_string()))
}

fn file_result(done: Result<Value, FileError>) -> Result<Value, UseError> {
    match done {
        Ok(value) => Ok(value),
        Err(FileError::Session(error)) => Err(error.into()),
        Err(error) => Ok(json!({ "success": false, "error": error.to_string() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_make_no_sense_are_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 3601.0] {
            assert!(parse_timeout(Some(bad)).is_err(), "{bad}");
        }
        assert_eq!(parse_timeout(Some(0.5)), Ok(Duration::from_millis(500)));
        assert_eq!(parse_timeout(None), Ok(DEFAULT_TIMEOUT));
    }

    #[test]
    fn every_schema_forbids_what_it_does_not_name() {
        for tool in schemas(true).as_array().unwrap() {
            assert_eq!(tool["parameters"]["additionalProperties"], false, "{tool}");
            assert!(tool["description"].as_str().is_some_and(|text| !text.is_empty()));
        }
    }
}
