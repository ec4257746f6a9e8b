//! `run_python_code` and `run_command`.

use std::time::Duration;

use isopod_guest_client::guest::StartProcess;
use isopod_guest_client::interpreter::{CodeResult, RunCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors::ToolError;
use super::sandbox::Held;
use super::tool::{Fields, Toolkit, fields};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CodeArguments {
    code: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CommandArguments {
    command: String,
    #[serde(default = "a_minute")]
    timeout_seconds: f64,
}

fn a_minute() -> f64 {
    60.0
}

/// The limit on memory for the output and results of code, and on each stream of a command.
const MAX_RESULT_BYTES: usize = 64 << 20;
pub(super) const MAX_OUTPUT: usize = 10 << 20;

impl CommandArguments {
    pub(super) fn timeout(&self) -> Result<Duration, ToolError> {
        let wrong = || ToolError::Arguments("timeout_seconds must be more than 0 and at most 86400".to_owned());
        let is_sane = self.timeout_seconds > 0.0 && self.timeout_seconds <= 86_400.0;
        let timeout = Duration::try_from_secs_f64(self.timeout_seconds).map_err(|_| wrong())?;
        if is_sane { Ok(timeout) } else { Err(wrong()) }
    }
}

impl Toolkit {
    /// `success` means that the code was run. Whether it failed is in `error` and `ok`.
    pub(super) async fn run_python_code(&self, held: &Held, arguments: CodeArguments) -> Result<Fields, ToolError> {
        let mut memory = held.memory.reserve();
        let interpreter = held.inside.interpreter.clone().with_memory(held.memory.clone());
        let code = RunCode::new(arguments.code).timeout(self.config.timeout());
        let done = interpreter.run(code).await?.collect_within(MAX_RESULT_BYTES, &mut memory).await?;
        let error = done.error.as_ref().map(|error| format!("{}: {}", error.name, error.value));
        let results: Vec<String> = done.results.iter().map(shown).collect();
        let rich: Vec<Value> = done.results.iter().map(rich).collect();
        let mut result = json!({
            "success": true,
            "results": results,
            "stdout": lines(&done.stdout),
            "stderr": lines(&done.stderr),
            "error": error,
            "rich_results": rich,
        });
        if let Some(error) = done.error {
            result["traceback"] = json!(error.traceback);
        }
        if done.truncated {
            result["truncated"] = json!(true);
        }
        Ok(fields(result))
    }

    pub(super) async fn run_command(&self, held: &Held, arguments: &CommandArguments) -> Result<Fields, ToolError> {
        let timeout = arguments.timeout()?;
        let process = StartProcess::shell(&arguments.command).timeout(timeout);
        Ok(fields(run(held, process).await?))
    }
}

/// Runs a process to its end. `success` means exit code 0. `truncated` is set if it wrote more than the limit.
pub(super) async fn run(held: &Held, process: StartProcess) -> Result<Value, ToolError> {
    let mut memory = held.memory.reserve();
    let output = held.inside.guest.start(process).await?.collect_within(MAX_OUTPUT, &mut memory).await?;
    let mut result = json!({
        "success": output.ended.is_success(),
        "exit_code": output.ended.exit_code,
        "stdout": String::from_utf8_lossy(&output.stdout),
        "stderr": String::from_utf8_lossy(&output.stderr),
    });
    if output.truncated {
        result["truncated"] = json!(true);
    }
    Ok(result)
}

/// Splits text into lines, without their terminators.
fn lines(text: &str) -> Vec<&str> {
    text.split_terminator('\n').collect()
}

/// The text of a result, or the name of its format.
fn shown(result: &CodeResult) -> String {
    match &result.text {
        Some(text) => text.clone(),
        None => rich(result).as_object().and_then(|forms| forms.keys().next().cloned()).unwrap_or_default(),
    }
}

/// All formats that the result has.
fn rich(result: &CodeResult) -> Value {
    let mut forms = json!(result);
    if let Some(forms) = forms.as_object_mut() {
        forms.retain(|_, form| !form.is_null());
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_a_list_of_lines() {
        assert_eq!(lines("a\n\nb"), ["a", "", "b"]);
        assert_eq!(lines("a\n"), ["a"]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn a_result_without_text_is_named_by_its_form() {
        let result = CodeResult { png: Some("AA".to_owned()), ..CodeResult::default() };
        assert_eq!(rich(&result)["png"], "AA");
        assert!(rich(&result)["text"].is_null());
    }
}
