//! `POST /api/v1/fragments`: runs a fragment, with the result that E2B's fragments app expects.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use http::request::Parts;
use isopod_api::{ApiError, Caller, JsonBody, Prepared, audit::Subject, scheme_of, until_answered};
use isopod_guest_client::interpreter::{CodeError, CodeResult, Executed};
use isopod_wire::SandboxId;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::fragment_body::FragmentBody;
use crate::Access;
use crate::Service;
use crate::{FragmentOutcome, FragmentRun, ServiceError};

/// What became of a fragment: the results of its code, or the URL of its app.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = FragmentResult)]
pub(super) enum FragmentView {
    Code(CodeFragmentView),
    App(AppFragmentView),
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CodeFragmentResult)]
pub(super) struct CodeFragmentView {
    /// The sandbox, which lives on until its timeout.
    #[schema(value_type = Option<String>)]
    sbx_id: Option<SandboxId>,
    template: String,
    /// Lines, with their ends.
    stdout: Vec<String>,
    stderr: Vec<String>,
    runtime_error: Option<RuntimeErrorView>,
    /// What the code displayed and the value of its last expression, each in all its formats.
    #[schema(value_type = Vec<Object>)]
    cell_results: Vec<Value>,
    /// True if there was more output than the server collects.
    truncated: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AppFragmentResult)]
pub(super) struct AppFragmentView {
    /// The sandbox, which lives on until its timeout.
    #[schema(value_type = Option<String>)]
    sbx_id: Option<SandboxId>,
    template: String,
    /// The preview of the app, for example for an iframe.
    url: String,
}

/// An exception that the code did not catch.
#[derive(Serialize, ToSchema)]
#[schema(as = RuntimeError)]
pub(super) struct RuntimeErrorView {
    name: String,
    value: String,
    traceback: String,
}

pub(super) async fn run(
    State(service): State<Arc<Service>>,
    caller: Caller,
    parts: Parts,
    mut body: JsonBody<FragmentBody>,
) -> Result<Prepared<(Extension<Subject>, Json<FragmentView>)>, ApiError> {
    // E2B's app sends the fragment with ids of people and teams around it. Who asks is known from the key.
    if let Some(inner) = body.0.get_mut("fragment").filter(|inner| inner.is_object()) {
        body.0 = inner.take();
    }
    let fragment = body.parse()?.checked(&service)?;
    let (runner, access) = (Arc::clone(&service), Access::from(&caller));
    service.wait_to_run(&access, &fragment).await?;
    let running = async move { runner.run_fragment(&access, fragment).await.map(Arc::new) };
    // A client that disconnected never learns the sandbox's id.
    let ender = Arc::clone(&service);
    let undo = |run: Arc<FragmentRun>| async move { ender.end_unanswered(run.row.clone()).await };
    let made = until_answered(running, undo).await.unwrap_or(Err(ServiceError::Aborted));
    let (run, receipt) = made?;
    Ok(Prepared::new(receipt.on(answer(&service, &parts, &run))))
}

fn answer(service: &Service, parts: &Parts, run: &FragmentRun) -> Response {
    let (sbx_id, template) = (run.row.sandbox.clone(), run.row.template.clone());
    let view = match &run.outcome {
        FragmentOutcome::Executed { executed, .. } => FragmentView::Code(code_view(sbx_id, template, executed)),
        FragmentOutcome::Serving { port, host } => {
            let url = sbx_id.as_ref().map(|sandbox| preview_url(service, parts, sandbox, *port, host.as_deref()));
            FragmentView::App(AppFragmentView { sbx_id, template, url: url.unwrap_or_default() })
        }
    };
    (Extension(Subject::from(&run.row)), Json(view)).into_response()
}

/// The URL of a port. Sandboxes of another server have names of their own, which are served over https.
pub(super) fn preview_url(
    service: &Service,
    parts: &Parts,
    sandbox: &SandboxId,
    port: u16,
    host: Option<&str>,
) -> String {
    match host {
        Some(host) => format!("https://{host}"),
        None => format!("{}://{}", scheme_of(parts), service.previews.host(parts, sandbox, port)),
    }
}

fn code_view(sbx_id: Option<SandboxId>, template: String, executed: &Executed) -> CodeFragmentView {
    CodeFragmentView {
        sbx_id,
        template,
        stdout: lines(&executed.stdout),
        stderr: lines(&executed.stderr),
        runtime_error: executed.error.as_ref().map(runtime_error),
        cell_results: executed.results.iter().map(cell_result).collect(),
        truncated: executed.truncated,
    }
}

fn runtime_error(error: &CodeError) -> RuntimeErrorView {
    RuntimeErrorView { name: error.name.clone(), value: error.value.clone(), traceback: error.traceback.clone() }
}

fn lines(text: &str) -> Vec<String> {
    text.split_inclusive('\n').map(str::to_owned).collect()
}

/// The formats that a result has, under the names of E2B's JavaScript SDK.
pub(super) fn cell_result(result: &CodeResult) -> Value {
    let mut shown = json!(result);
    if let Some(formats) = shown.as_object_mut() {
        formats.retain(|_, format| !format.is_null());
        formats.remove("is_main_result");
        formats.insert("isMainResult".to_owned(), json!(result.is_main_result));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_a_list_of_lines_that_joins_to_the_output() {
        assert_eq!(lines("a\n\nb"), ["a\n", "\n", "b"]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn a_result_has_the_formats_that_exist_and_the_sdks_names() {
        let result = CodeResult { png: Some("AA".to_owned()), is_main_result: true, ..CodeResult::default() };
        assert_eq!(cell_result(&result), json!({ "png": "AA", "isMainResult": true }));
    }
}
