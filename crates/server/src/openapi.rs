//! The description of the API for programs (`/openapi.json`) and for people (`/docs`). The document is generated from
//! the route tables and from the types in the handlers' signatures.

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use http::header;
use isopod_api::Needs::Nothing;
use isopod_api::{DescribeAnswer, Description, Document, Routes, get, reads};
use serde_json::Value;

const ABOUT: &str = "The E2B API on your own machine. Traffic to sandboxes does not go through these routes: name a sandbox \
    by the headers E2b-Sandbox-Id and E2b-Sandbox-Port, by the host {port}-{id}.{domain} or by the path \
    /sandbox/{id}/{port}/.";

/// The document of all routes, built on the first request.
#[derive(Debug)]
pub(crate) struct ApiDocument {
    routes: fn() -> Document,
    made: OnceLock<Value>,
}

impl ApiDocument {
    pub(crate) fn of(routes: fn() -> Document) -> Arc<Self> {
        Arc::new(Self { routes, made: OnceLock::new() })
    }

    fn value(&self) -> &Value {
        self.made.get_or_init(|| {
            let document = (self.routes)().finish("Isopod", env!("CARGO_PKG_VERSION"), ABOUT);
            serde_json::to_value(document).expect("the keys of the document are strings")
        })
    }
}

/// The routes that serve the document.
pub(crate) fn routes() -> Routes<Arc<ApiDocument>> {
    Routes::new()
        .route("/openapi.json", [get(reads(Nothing), "Get this document", document)])
        .route("/docs", [get(reads(Nothing), "Show all operations on a page", page)])
}

/// The document itself. Its schema is that of OpenAPI.
struct OpenApiDocument(String);

async fn document(State(document): State<Arc<ApiDocument>>) -> OpenApiDocument {
    OpenApiDocument(document.value().to_string())
}

impl IntoResponse for OpenApiDocument {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

impl DescribeAnswer for OpenApiDocument {
    fn describe(operation: &mut Description) {
        operation.json_answer::<Value>(200);
    }
}

/// A plain list. The page loads nothing else.
async fn page(State(document): State<Arc<ApiDocument>>) -> Html<String> {
    let document = document.value();
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
