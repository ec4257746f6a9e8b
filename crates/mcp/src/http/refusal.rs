//! Why a request is refused before a session sees it, in the form that MCP clients read.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use isopod_client::sandbox::ConfigError;
use isopod_wire::error_chain;
use serde_json::json;

use super::session::Body;

#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// Clients start a new session then.
    #[error("there is no such session; start another one with `initialize`")]
    NoSession,
    #[error("the header Mcp-Session-Id is missing")]
    NeedsSession,
    #[error("this key has {0} MCP sessions already; end one with DELETE, or wait until one has been idle for a while")]
    TooManyOfOwner(usize),
    #[error("the server has {0} MCP sessions already; try again later")]
    TooMany(usize),
    #[error("the query is invalid: {0}")]
    Query(String),
    #[error("the host name of the request can't be used")]
    Host(#[source] ConfigError),
}

impl Refusal {
    pub(super) fn into_response(self) -> Response<Body> {
        let (status, code) = match &self {
            Self::NoSession => (StatusCode::NOT_FOUND, -32001),
            Self::TooManyOfOwner(_) => (StatusCode::TOO_MANY_REQUESTS, -32000),
            Self::TooMany(_) => (StatusCode::SERVICE_UNAVAILABLE, -32000),
            Self::NeedsSession | Self::Query(_) | Self::Host(_) => (StatusCode::BAD_REQUEST, -32600),
        };
        let error = json!({ "code": code, "message": error_chain(&self) });
        let body = json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string();
        let mut response = Response::new(Body::plain(Full::new(Bytes::from(body)).boxed()));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        response
    }
}
