//! The API described for machines (`/openapi.json`) and for people (`/docs`). The document is written by hand and
//! checked in, E2B's part and the service's each in a file of its own; a test asks the server for every route in it.

use std::sync::LazyLock;

use axum::response::{Html, IntoResponse};
use http::header;
use serde_json::Value;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("a test reads both files");
    let mut document = parse(include_str!("openapi.json"));
    let mut service = parse(isopod_service::OPENAPI);
    add(&mut document["paths"], service["paths"].take());
    add(&mut document["components"]["schemas"], service["schemas"].take());
    document
});

fn add(to: &mut Value, more: Value) {
    if let (Value::Object(to), Value::Object(more)) = (to, more) {
        to.extend(more);
    }
}

pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.to_string())
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
