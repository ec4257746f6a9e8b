//! The routes of the interpreter's port. Errors are plain text, which E2B's clients show as it is.

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::language::Language;
use super::{Interpreter, create, execute, fork, list, remove, restart};
use crate::http::{HttpError, Reply, drain, json_reply, read_body, text_reply, with_cors};

pub(super) async fn answer(interpreter: Arc<Interpreter>, request: Request<Incoming>) -> Reply {
    with_cors(request, async |request| {
        route(&interpreter, request).await.unwrap_or_else(|error| text_reply(error.status, error.message))
    })
    .await
}

async fn route(interpreter: &Arc<Interpreter>, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    if parts == ["health"] {
        return match method {
            Method::GET | Method::HEAD => Ok(json_reply(&"OK")),
            _ => Err(wrong_method(request).await),
        };
    }
    // A new context would not be part of a checkpoint that is being made.
    drop(interpreter.gate.pass().await);
    if interpreter.settings.get().is_none() {
        drain(request.into_body()).await;
        let message = "the sandbox is not set up yet, try again in a moment";
        return Err(HttpError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    interpreter.contexts.ensure_first(interpreter, &Language::python());
    match (&method, parts.as_slice()) {
        (&Method::POST, ["execute"]) => execute::execute(interpreter, request).await,
        (&Method::POST, ["contexts"]) => create::create(interpreter, request).await,
        (&Method::GET, ["contexts"]) => Ok(list::list(interpreter, request).await),
        (&Method::POST, ["contexts", id, "restart"]) => restart::restart(interpreter, id, request).await,
        (&Method::POST, ["contexts", id, "fork"]) => fork::fork(interpreter, id, request).await,
        (&Method::DELETE, ["contexts", id]) => remove::remove(interpreter, id, request).await,
        (_, ["execute" | "contexts"] | ["contexts", _] | ["contexts", _, "restart" | "fork"]) => {
            Err(wrong_method(request).await)
        }
        _ => {
            drain(request.into_body()).await;
            Err(HttpError::new(StatusCode::NOT_FOUND, "Not Found"))
        }
    }
}

async fn wrong_method(request: Request<Incoming>) -> HttpError {
    drain(request.into_body()).await;
    HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
}

pub(super) fn no_context(id: &str) -> HttpError {
    HttpError::new(StatusCode::NOT_FOUND, format!("Context {id} not found"))
}

pub(super) fn failed(error: &impl std::error::Error) -> HttpError {
    HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// Reads a JSON body. An empty body counts as `{}`.
pub(super) async fn read<T: DeserializeOwned>(request: Request<Incoming>, at_most: usize) -> Result<T, HttpError> {
    let bytes = read_body(request, at_most).await?;
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(bytes)
        .map_err(|error| HttpError::new(StatusCode::UNPROCESSABLE_ENTITY, format!("invalid request body: {error}")))
}
