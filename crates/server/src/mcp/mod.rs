//! `/mcp`: coding agents get sandboxes as tools, over streamable HTTP. The tools are in `isopod-mcp`; here are the routes,
//! and the way from the tools to the API.
//!
//! Tools have no door of their own: each is a client of this very API, over a connection inside the process, with the
//! credentials of the request that called it. So every rule, limit and audit line applies by itself.

mod inside;
mod metadata;

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use isopod_api::Needs::{Nothing, TeamView};
use isopod_api::audit::Subject;
use isopod_api::{
    ApiError, Authenticator, Caller, EventStream, Peer, Prepared, Routes, body_error, delete, get, post, reads,
    scheme_of,
};
use isopod_mcp::{McpHttp, Visitor};
use isopod_wire::compat::{TEAM_HEADER, TOKEN_HEADER};
use serde::Deserialize;

pub(crate) use inside::Inside;

/// A message of a client.
const MAX_MESSAGE: usize = 16 << 20;
/// The headers by which a caller authenticates.
const CREDENTIALS: [&str; 4] = ["authorization", "x-api-key", TOKEN_HEADER, TEAM_HEADER];
/// How much of a method's name goes into the audit log.
const MAX_NAME: usize = 64;

/// The state of these routes.
pub(crate) struct McpEndpoint {
    pub(crate) http: Arc<McpHttp>,
    pub(crate) inside: Inside,
    pub(crate) authenticator: Arc<Authenticator>,
}

/// What the audit log says of a message.
#[derive(Debug, Default, Deserialize)]
struct Message {
    #[serde(default)]
    method: String,
    #[serde(default)]
    params: Params,
}

#[derive(Debug, Default, Deserialize)]
struct Params {
    #[serde(default)]
    name: String,
}

type Answered = (Extension<Subject>, Prepared<EventStream>);

pub(crate) fn routes() -> Routes<Arc<McpEndpoint>> {
    let reading = reads(TeamView);
    Routes::new()
        .route(
            "/mcp",
            [
                get(reading, "Open the stream of an MCP session", open).may_refuse(&[400, 404, 405, 406, 429, 503]),
                post(reading.audited_as("mcp.message"), "Send a message of MCP", message)
                    .without_body_limit()
                    .may_refuse(&[400, 404, 406, 413, 415, 429, 503]),
                delete(reading.audited_as("mcp.end"), "End an MCP session and its sandboxes", open)
                    .may_refuse(&[400, 404, 429, 503]),
            ],
        )
        .route("/.well-known/oauth-protected-resource", [get(reads(Nothing), metadata::SUMMARY, metadata::get)])
        .route("/.well-known/oauth-protected-resource/mcp", [get(reads(Nothing), metadata::SUMMARY, metadata::get)])
}

/// The routes with their challenge for callers without a key.
pub(crate) fn router(endpoint: Arc<McpEndpoint>) -> axum::Router {
    let authenticator = Arc::clone(&endpoint.authenticator);
    routes().into_router(&authenticator, endpoint).layer(from_fn(challenge))
}

/// Tells MCP clients where they learn how to authenticate (RFC 9728).
async fn challenge(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let base = base_url(&parts);
    let has_credentials = CREDENTIALS.iter().any(|name| parts.headers.contains_key(*name));
    let mut response = next.run(Request::from_parts(parts, body)).await;
    if response.status() == StatusCode::UNAUTHORIZED {
        let error = if has_credentials { "error=\"invalid_token\", " } else { "" };
        let text = format!("Bearer {error}resource_metadata=\"{base}/.well-known/oauth-protected-resource/mcp\"");
        if let Ok(value) = HeaderValue::try_from(text) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
    }
    response
}

/// GET and DELETE, which have no body.
async fn open(State(endpoint): State<Arc<McpEndpoint>>, caller: Caller, parts: Parts) -> Answered {
    let request = Request::from_parts(parts, bytes::Bytes::new());
    endpoint.answer(&caller, Subject::default(), request).await
}

async fn message(State(endpoint): State<Arc<McpEndpoint>>, caller: Caller, request: Request) -> Answered {
    let (parts, body) = request.into_parts();
    let body = match to_bytes(body, MAX_MESSAGE).await {
        Ok(body) => body,
        Err(error) => {
            // What didn't stall was too large, or nobody waits for the answer.
            let refusal = body_error(&error, ApiError::too_large(MAX_MESSAGE));
            return (Extension(Subject::default()), Prepared::new(refusal.into_response()));
        }
    };
    let message: Message = serde_json::from_slice(&body).unwrap_or_default();
    let task = format!("mcp/{}", [message.method, message.params.name].join(" ").trim_end());
    let subject = Subject { task: Some(task.chars().take(MAX_NAME).collect()), ..Subject::default() };
    endpoint.answer(&caller, subject, Request::from_parts(parts, body)).await
}

impl McpEndpoint {
    async fn answer(&self, caller: &Caller, subject: Subject, request: Request<bytes::Bytes>) -> Answered {
        let (parts, body) = request.into_parts();
        let visitor = self.visitor(caller, &parts);
        let response = self.http.answer(visitor, Request::from_parts(parts, body)).await;
        (Extension(subject), Prepared::new(response.map(Body::new)))
    }

    fn visitor(&self, caller: &Caller, parts: &Parts) -> Visitor {
        let known = CREDENTIALS.iter().filter_map(|name| {
            let mut value = parts.headers.get(*name)?.clone();
            value.set_sensitive(true);
            Some((header::HeaderName::from_static(name), value))
        });
        Visitor {
            owner: format!("{}/{}", caller.team.0, caller.actor),
            credentials: known.collect::<HeaderMap>(),
            connector: self.inside.connector(parts.extensions.get::<Peer>().copied()),
            api_url: format!("http://{}", host_of(parts)),
            preview_scheme: scheme_of(parts),
        }
    }
}

/// The URL by which the caller knows the server.
fn base_url(parts: &Parts) -> String {
    format!("{}://{}", scheme_of(parts), host_of(parts))
}

/// The host and port that the caller named. What is no host name isn't repeated.
fn host_of(parts: &Parts) -> String {
    let header = || parts.headers.get(header::HOST)?.to_str().ok()?.parse().ok();
    let authority: Option<http::uri::Authority> = parts.uri.authority().cloned().or_else(header);
    match authority {
        Some(authority) if !authority.as_str().contains('@') => authority.to_string(),
        _ => "localhost".to_owned(),
    }
}
