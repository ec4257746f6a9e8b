//! Which request on the port means what. Refusals are plain text, as E2B's clients show them.

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::language::Language;
use super::{Host, create, execute, list, remove, restart};
use crate::http::{HttpError, Reply, drain, json_reply, read_body, text_reply, with_cors};

pub(super) async fn answer(host: Host, request: Request<Incoming>) -> Reply {
    with_cors(request, async |request| {
        route(&host, request).await.unwrap_or_else(|error| text_reply(error.status, error.message))
    })
    .await
}

async fn route(host: &Host, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    if parts == ["health"] {
        return match method {
            Method::GET | Method::HEAD => Ok(json_reply(&"OK")),
            _ => Err(wrong_method(request).await),
        };
    }
    if host.guest().settings().is_none() {
        drain(request.into_body()).await;
        let message = "the sandbox is not set up yet, try again in a moment";
        return Err(HttpError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    host.interpreter().contexts.ensure_first(host, &Language::python());
    match (&method, parts.as_slice()) {
        (&Method::POST, ["execute"]) => execute::execute(host, request).await,
        (&Method::POST, ["contexts"]) => create::create(host, request).await,
        (&Method::GET, ["contexts"]) => Ok(list::list(host, request).await),
        (&Method::POST, ["contexts", id, "restart"]) => restart::restart(host, id, request).await,
        (&Method::DELETE, ["contexts", id]) => remove::remove(host, id, request).await,
        (_, ["execute" | "contexts"] | ["contexts", _] | ["contexts", _, "restart"]) => {
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

/// A JSON body; an empty one counts as `{}`.
pub(super) async fn read<T: DeserializeOwned>(request: Request<Incoming>, at_most: usize) -> Result<T, HttpError> {
    let bytes = read_body(request, at_most).await?;
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(bytes)
        .map_err(|error| HttpError::new(StatusCode::UNPROCESSABLE_ENTITY, format!("invalid request body: {error}")))
}
