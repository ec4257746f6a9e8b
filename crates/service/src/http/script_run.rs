//! `POST /sandbox/run`: runs a script in a sandbox of its own. The sandbox ends with it.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use isopod_api::{ApiError, Caller, JsonBody, audit::Subject};
use isopod_guest_client::interpreter::Executed;
use isopod_wire::SandboxId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::fragment_body::checked_lifetime;
use super::fragments::cell_result;
use crate::Access;
use crate::Service;
use crate::{Fragment, FragmentAction, FragmentOutcome, ScriptRun};

#[derive(Deserialize, ToSchema)]
#[schema(as = Script)]
pub(super) struct ScriptBody {
    script: String,
    /// Python by default.
    #[schema(pattern = "^(python|javascript|typescript|bash|r|java)$")]
    language: Option<String>,
    /// A template with a code interpreter.
    #[schema(min_length = 1, max_length = 256)]
    template: Option<String>,
    /// How long the sandbox may live, in seconds.
    #[schema(minimum = 30, maximum = 3600)]
    timeout_seconds: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ScriptResult)]
pub(super) struct ScriptView {
    /// What the script wrote, the text of its results, and its error.
    output: String,
    /// `success` or `error`.
    status: String,
    stdout: String,
    stderr: String,
    error: Option<String>,
    #[schema(value_type = Vec<Object>)]
    results: Vec<Value>,
    metadata: ScriptMetadata,
    #[schema(value_type = Option<String>)]
    sandbox_id: Option<SandboxId>,
}

#[derive(Serialize, ToSchema)]
struct ScriptMetadata {
    execution_time_ms: u64,
    /// The memory of the sandbox when the script ended.
    memory_usage_mb: Option<f64>,
}

const LANGUAGES: [&str; 6] = ["python", "javascript", "typescript", "bash", "r", "java"];

pub(super) async fn run(
    State(service): State<Arc<Service>>,
    caller: Caller,
    body: JsonBody<ScriptBody>,
) -> Result<(Extension<Subject>, Json<ScriptView>), ApiError> {
    let script = body.parse()?.checked(&service)?;
    let access = Access::from(&caller);
    service.wait_to_run(&access, &script).await?;
    let done = service.execute_script(&access, script).await?;
    Ok((Extension(Subject::from(&done.run.row)), Json(view(&done))))
}

impl ScriptBody {
    fn checked(self, service: &Service) -> Result<Fragment, ApiError> {
        let language = self.language.as_deref().unwrap_or("python").to_ascii_lowercase();
        let language = match language.as_str() {
            "py" | "python3" => "python",
            "js" | "node" | "nodejs" => "javascript",
            "ts" => "typescript",
            "sh" | "shell" => "bash",
            other => other,
        };
        if !LANGUAGES.contains(&language) {
            return Err(ApiError::bad_request(format!("language must be one of {}", LANGUAGES.join(", "))));
        }
        if self.template.as_ref().is_some_and(|name| name.is_empty() || name.len() > 256) {
            return Err(ApiError::bad_request("template must have 1 to 256 characters"));
        }
        Ok(Fragment {
            template: self.template.unwrap_or_else(|| default_template(language).to_owned()),
            title: None,
            manifests: Vec::new(),
            install: Vec::new(),
            files: Vec::new(),
            action: FragmentAction::RunCode { code: self.script, language: Some(language.to_owned()) },
            lifetime: checked_lifetime(service, self.timeout_seconds)?,
        })
    }
}

fn default_template(language: &str) -> &'static str {
    match language {
        "r" | "java" => "code-interpreter-full",
        _ => "code-interpreter-v1",
    }
}

fn view(done: &ScriptRun) -> ScriptView {
    let none = Executed::default();
    let executed = match &done.run.outcome {
        FragmentOutcome::Executed { executed, .. } => executed,
        FragmentOutcome::Serving { .. } => &none,
    };
    let error = executed.error.as_ref().map(|error| format!("{}: {}", error.name, error.value));
    ScriptView {
        output: output(executed),
        status: if error.is_none() { "success" } else { "error" }.to_owned(),
        stdout: executed.stdout.clone(),
        stderr: executed.stderr.clone(),
        error,
        results: executed.results.iter().map(cell_result).collect(),
        metadata: ScriptMetadata {
            execution_time_ms: u64::try_from(done.took().as_millis()).unwrap_or(u64::MAX),
            memory_usage_mb: done.memory_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)),
        },
        sandbox_id: done.run.row.sandbox.clone(),
    }
}

fn output(executed: &Executed) -> String {
    let results = executed.results.iter().filter_map(|result| result.text.as_deref());
    let parts = [executed.stdout.as_str(), executed.stderr.as_str()].into_iter().chain(results);
    let mut output: String = parts.collect::<Vec<_>>().concat();
    if let Some(error) = &executed.error {
        if !output.is_empty() && !output.ends_with('\n') {
            output.push('\n');
        }
        output += if error.traceback.is_empty() { &error.value } else { &error.traceback };
    }
    output
}

#[cfg(test)]
mod tests {
    use isopod_guest_client::interpreter::{CodeError, CodeResult};

    use super::*;

    #[test]
    fn the_output_has_what_was_written_then_results_then_the_error() {
        let mut executed = Executed { stdout: "out\n".to_owned(), stderr: "err\n".to_owned(), ..Executed::default() };
        executed.results.push(CodeResult { text: Some("42".to_owned()), ..CodeResult::default() });
        assert_eq!(output(&executed), "out\nerr\n42");
        executed.error = Some(CodeError { traceback: "Traceback".to_owned(), ..CodeError::default() });
        assert_eq!(output(&executed), "out\nerr\n42\nTraceback");
        assert_eq!(output(&Executed::default()), "");
    }
}
