//! Why a request does not reach a sandbox, with the texts that the SDKs expect, as JSON or as an HTML page.

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use isopod_api::Elsewhere;
use isopod_wire::{FeatureError, SandboxId};
use serde_json::{Value, json};

use crate::lifecycle::{DRAIN_RETRY, Draining};

pub(super) const TRAFFIC_HEADER: &str = "e2b-traffic-access-token";

/// Another server: its id, and its name for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerName {
    pub(super) id: String,
    pub(super) name: String,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    InvalidHost,
    InvalidSandboxId,
    InvalidPort,
    InvalidSignature,
    MissingHeader(&'static str),
    NotFound(SandboxId),
    /// Another server that shares the database has it.
    Elsewhere(SandboxId, ServerName),
    /// Another server has it, and doesn't answer.
    ServerUnreachable(SandboxId, String),
    /// The request used a domain that this server does not serve. Contains the right one.
    UnknownDomain(SandboxId, String),
    PortClosed(SandboxId, u16),
    /// Nothing listens where a code interpreter would.
    NoInterpreter(SandboxId),
    TokenMissing(SandboxId),
    TokenInvalid(SandboxId),
    InternalPath,
    TooManyConnections(SandboxId),
    /// The request would resume the sandbox, but its team has reached a limit.
    TeamLimit(SandboxId, String),
    /// The request would resume the sandbox, but the server is being drained.
    Draining(SandboxId, Draining),
    /// The request would resume the sandbox, but its team may no longer have a kernel feature of it.
    Feature(SandboxId, FeatureError),
    /// The connection failed. The details are in the log.
    Unreachable(SandboxId),
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::InvalidHost | Self::InvalidSandboxId | Self::InvalidPort | Self::MissingHeader(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::InvalidSignature => StatusCode::UNAUTHORIZED,
            Self::NotFound(_) | Self::PortClosed(..) | Self::Unreachable(_) => StatusCode::BAD_GATEWAY,
            Self::Elsewhere(..) | Self::UnknownDomain(..) => StatusCode::MISDIRECTED_REQUEST,
            Self::ServerUnreachable(..) => StatusCode::SERVICE_UNAVAILABLE,
            Self::TokenMissing(_) | Self::TokenInvalid(_) | Self::Feature(..) => StatusCode::FORBIDDEN,
            // The SDKs report a 502 as a probable timeout of the sandbox. For a 404, they show the message.
            Self::InternalPath | Self::NoInterpreter(_) => StatusCode::NOT_FOUND,
            Self::TooManyConnections(_) | Self::TeamLimit(..) => StatusCode::TOO_MANY_REQUESTS,
            Self::Draining(..) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::InvalidHost => "Invalid host".to_owned(),
            Self::InvalidSandboxId => "Invalid sandbox ID".to_owned(),
            Self::InvalidPort => "Invalid sandbox port".to_owned(),
            Self::InvalidSignature => "invalid signature".to_owned(),
            Self::MissingHeader(name) => format!("missing header {name}"),
            Self::NotFound(_) => "The sandbox was not found".to_owned(),
            Self::Elsewhere(_, server) => format!("The sandbox is on another server: {}", server.name),
            Self::ServerUnreachable(_, server) => {
                format!("The sandbox is on the server {server}, which can't be reached at the moment")
            }
            Self::UnknownDomain(_, domain) => {
                format!("This server does not serve that domain; its sandboxes have names below {domain}")
            }
            Self::PortClosed(..) => "The sandbox is running but port is not open".to_owned(),
            Self::NoInterpreter(_) => {
                "The template has no code interpreter; use code-interpreter-v1, nodejs or a template built on one of them".to_owned()
            }
            Self::TokenMissing(_) => {
                format!("Sandbox is secured with traffic access token. Token header '{TRAFFIC_HEADER}' is missing")
            }
            Self::TokenInvalid(_) => {
                format!("Sandbox is secured with traffic access token. Token header '{TRAFFIC_HEADER}' is invalid")
            }
            Self::InternalPath => "not found".to_owned(),
            Self::TooManyConnections(_) => "The sandbox has too many open connections".to_owned(),
            Self::TeamLimit(_, why) => format!("The sandbox cannot be resumed: {why}"),
            Self::Draining(_, why) => format!("The sandbox cannot be resumed: {why}"),
            Self::Feature(_, why) => format!("The sandbox cannot be resumed: {why}"),
            Self::Unreachable(_) => "The sandbox could not be reached".to_owned(),
        }
    }

    fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::NotFound(id)
            | Self::Elsewhere(id, _)
            | Self::ServerUnreachable(id, _)
            | Self::UnknownDomain(id, _)
            | Self::PortClosed(id, _)
            | Self::NoInterpreter(id)
            | Self::TokenMissing(id)
            | Self::TokenInvalid(id) => Some(id),
            Self::TooManyConnections(id)
            | Self::TeamLimit(id, _)
            | Self::Draining(id, _)
            | Self::Feature(id, _)
            | Self::Unreachable(id) => Some(id),
            _ => None,
        }
    }

    /// Returns the response, as an HTML page if a browser shows it.
    pub(crate) fn response(&self, request: &HeaderMap) -> Response<Body> {
        let (kind, body) = if is_browser(request) {
            ("text/html; charset=utf-8", self.page())
        } else {
            ("application/json; charset=utf-8", self.json().to_string())
        };
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Self::Elsewhere(_, server) = self {
            response.extensions_mut().insert(Elsewhere::On { server: server.id.clone() });
        }
        let headers = response.headers_mut();
        if let Self::Draining(..) = self {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(DRAIN_RETRY.as_secs()));
        }
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(self.policy()));
        response
    }

    /// Our own pages run no scripts. The page that waits for a port is not sandboxed in addition, because a sandboxed
    /// page cannot reload itself.
    fn policy(&self) -> &'static str {
        match self {
            Self::PortClosed(..) => "default-src 'none'; style-src 'unsafe-inline'",
            _ => "sandbox; default-src 'none'; style-src 'unsafe-inline'",
        }
    }

    fn json(&self) -> Value {
        let mut body = json!({ "message": self.message(), "code": self.status().as_u16() });
        if let Some(id) = self.sandbox() {
            body["sandboxId"] = json!(id);
        }
        if let Self::PortClosed(_, port) = self {
            body["port"] = json!(port);
        }
        body
    }

    /// The page contains nothing from the request except ids and numbers that were parsed.
    fn page(&self) -> String {
        let sandbox = self.sandbox().map(|id| format!("<p>Sandbox <code>{id}</code></p>")).unwrap_or_default();
        // The page reloads itself, so that a preview appears as soon as its server is up.
        let (again, port) = match self {
            Self::PortClosed(_, port) => (
                "<meta http-equiv=refresh content=1>",
                format!("<p>Nothing listens on port <code>{port}</code> yet. This page waits for it.</p>"),
            ),
            _ => ("", String::new()),
        };
        format!(
            "<!doctype html><html lang=en><meta charset=utf-8>{again}<title>{status}</title>\
             <style>body{{font:16px system-ui;max-width:36rem;margin:15vh auto;padding:0 1rem}}</style>\
             <h1>{message}</h1>{sandbox}{port}</html>",
            status = self.status(),
            message = self.message().replace('&', "&amp;").replace('<', "&lt;"),
        )
    }
}

/// Whether a browser shows the response, as opposed to a script that fetches it.
fn is_browser(headers: &HeaderMap) -> bool {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let by_script = headers.get("sec-fetch-mode").is_some_and(|mode| mode == "cors");
    text(header::USER_AGENT).contains("Mozilla/") && text(header::ACCEPT).contains("text/html") && !by_script
}
