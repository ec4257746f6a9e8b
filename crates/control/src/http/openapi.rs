//! The API described for machines (`/openapi.json`) and for people (`/docs`). The document is written by hand and
//! checked in; a test asks the server for every route in it.

use axum::response::{Html, IntoResponse};
use http::header;
use serde_json::Value;

const DOCUMENT: &str = include_str!("openapi.json");

pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

/// A plain list, so that nothing has to be loaded from anywhere.
pub(super) async fn page() -> Html<String> {
    let document: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
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
