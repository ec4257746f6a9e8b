//! `GET /s/{id}`: leads a visitor to the preview behind a short URL. It needs no key.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{Html, IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use isopod_api::{ApiError, DescribeAnswer, Description, address_of};

use super::fragments::preview_url;
use crate::Service;

/// A redirect, or a page that says why there is none.
pub(super) struct Opened(Response);

impl IntoResponse for Opened {
    fn into_response(self) -> Response {
        self.0
    }
}

impl DescribeAnswer for Opened {
    fn describe(operation: &mut Description) {
        operation.empty_answer(302);
    }
}

pub(super) async fn open(State(service): State<Arc<Service>>, Path(id): Path<String>, parts: Parts) -> Opened {
    let mut response = match service.open_short_url(address_of(&parts), &id).await {
        Ok(found) => {
            let base = preview_url(&service, &parts, &found.sandbox, found.port, found.host.as_deref());
            redirect(&(base + &found.path))
        }
        Err(error) => refusal(&parts.headers, ApiError::from(error)),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("x-robots-tag", HeaderValue::from_static("noindex"));
    Opened(response)
}

fn redirect(to: &str) -> Response {
    match HeaderValue::from_str(to) {
        Ok(to) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        // Only plain characters are recorded.
        Err(error) => ApiError::internal(&error).into_response(),
    }
}

/// A page for people, JSON for programs.
fn refusal(request: &HeaderMap, error: ApiError) -> Response {
    let wants_page = request.get(header::ACCEPT).is_some_and(|kinds| kinds.as_bytes().starts_with(b"text/html"));
    let (status, message) = (error.status(), error.message().replace(['<', '>', '&'], ""));
    let mut response = error.into_response();
    if wants_page {
        let page = format!(
            "<!doctype html><html lang=en><meta charset=utf-8><title>{}</title>\
             <style>body{{font:16px system-ui;max-width:40rem;margin:4rem auto;padding:0 1rem}}</style>\
             <h1>{}</h1><p>{message}</p></html>",
            status.as_u16(),
            status.canonical_reason().unwrap_or("Error"),
        );
        let kept = response.headers().get(header::RETRY_AFTER).cloned();
        response = (status, Html(page)).into_response();
        let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
        response.headers_mut().extend(kept.map(|wait| (header::RETRY_AFTER, wait)));
    }
    response
}
