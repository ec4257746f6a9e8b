//! The API described for machines (`/openapi.json`) and for people (`/docs`). The document is made of the route tables, and
//! of the types that the handlers take and give, when somebody asks for it first.

use std::sync::LazyLock;

use axum::response::{Html, IntoResponse, Response};
use http::header;
use isopod_control::http::{DescribeAnswer, Description};
use serde_json::Value;

use crate::routes::documented_routes;

const ABOUT: &str = "The E2B API on your own machine. Traffic to sandboxes does not go through these routes: name a sandbox \
    by the headers E2b-Sandbox-Id and E2b-Sandbox-Port, by the host {port}-{id}.{domain} or by the path \
    /sandbox/{id}/{port}/.";

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let document = documented_routes().finish("Isopod", env!("CARGO_PKG_VERSION"), ABOUT);
    serde_json::to_value(document).expect("it has no keys but texts")
});

/// The same as text.
static TEXT: LazyLock<String> = LazyLock::new(|| DOCUMENT.to_string());

/// The document itself, which is whatever OpenAPI says.
pub(super) struct OpenApiDocument;

pub(super) async fn document() -> OpenApiDocument {
    OpenApiDocument
}

impl IntoResponse for OpenApiDocument {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
    }
}

impl DescribeAnswer for OpenApiDocument {
    fn describe(operation: &mut Description) {
        operation.json_answer::<Value>(200);
    }
}

/// A plain list, so that nothing has to be loaded from anywhere.
pub(super) async fn page() -> Html<String> {
    let document = &*DOCUMENT;
    let mut rows = String::new();
    for (path, operations) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            let summary = operation["summary"].as_str().unwrap_or_default();
            rows += &format!("<tr><td>{}<td><code>{path}</code><td>{summary}\n", method.to_uppercase());
        }
    }
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Isopod API</title>\
         <style>body{{font:16px system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}}td{{padding:.2rem 1rem .2rem 0}}</style>\
         <h1>Isopod API</h1><p>{description}</p><p>Send your key as <code>X-API-Key</code>. \
         The whole description: <a href=/openapi.json>openapi.json</a></p><table>{rows}</table></html>",
        description = document["info"]["description"].as_str().unwrap_or_default(),
    ))
}
