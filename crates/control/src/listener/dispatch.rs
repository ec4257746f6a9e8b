//! Routes each request to the edge or to the API, with an id for the log.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use isopod_api::{ApiError, MaxBody, Peer, TimeoutBody};
use isopod_otlp::TraceParent;
use isopod_store::secrets::new_uuid;
use tower::ServiceExt as _;
use tracing::{Instrument as _, Span, field};

use super::limits::ConnectionLimits;
use super::timeouts::{ActiveBody, ActiveRequests};
use super::unread::RequestBody;
use crate::edge::{Edge, Route, proxy, route};
use crate::http::BrowserRules;
use crate::telemetry::Kind;

pub(super) struct Dispatch {
    edge: Edge,
    browsers: BrowserRules,
    api: Router,
    limits: ConnectionLimits,
}

impl Dispatch {
    pub(super) fn new(edge: Edge, browsers: BrowserRules, api: Router, limits: ConnectionLimits) -> Self {
        Self { edge, browsers, api, limits }
    }

    /// Answers one request. The connection counts as busy until the last byte of the response.
    pub(super) async fn answer(
        &self,
        peer: Peer,
        requests: &Arc<ActiveRequests>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let active = requests.begin();
        let id = new_uuid();
        let span = span_of(&id, &request);
        let request = request.map(|body| Body::new(RequestBody::new(body)));
        let refused = if requests.is_ambiguous() { Some(AMBIGUOUS_LENGTH) } else { ambiguous_host(&request) };
        let mut response = match refused {
            Some(reason) => bad_request(reason),
            None => self.route(peer, request).instrument(span.clone()).await,
        };
        span.record("http.response.status_code", response.status().as_u16());
        if let Ok(id) = HeaderValue::from_str(&id) {
            response.headers_mut().insert("x-request-id", id);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            active.keep_forever();
            return response;
        }
        response.map(|body| Body::new(ActiveBody::new(body, active)))
    }

    async fn route(&self, peer: Peer, request: Request<Body>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let way = route(&parts, &self.edge.domains, &self.edge.fleet);
        let (kind, response) = match way {
            Route::Sandbox(address) => {
                let request = Request::from_parts(parts, body);
                (Kind::Edge, proxy(&self.edge, address, peer, request).await)
            }
            Route::Refused(refusal) => (Kind::Edge, refusal.response(&parts.headers)),
            Route::Api => {
                parts.extensions.insert(peer);
                (Kind::Api, self.answer_api(Request::from_parts(parts, body)).await)
            }
        };
        let status = response.status().as_u16();
        self.edge.fleet.counters.answered(kind, status);
        tracing::debug!(?kind, status, "answered");
        response
    }

    async fn answer_api(&self, request: Request<Body>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let permission = match self.browsers.check(&parts) {
            Ok(permission) => permission,
            Err(refusal) => return *refusal,
        };
        parts.extensions.insert(MaxBody(self.limits.max_body));
        let body = TimeoutBody::new(body, self.limits.body_timeout);
        let request = Request::from_parts(parts, Body::new(body));
        let mut response = match self.api.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        permission.mark(response.headers_mut());
        response
    }
}

const AMBIGUOUS_LENGTH: &str =
    "the length of the request is ambiguous: send either a plain Content-Length or Transfer-Encoding, not both";

/// Returns the problem if it is ambiguous which host a request is for (RFC 9112, 3.2).
fn ambiguous_host(request: &Request<Body>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    match (first, authority) {
        _ if second.is_some() => Some("the request has several Host headers; send one"),
        (Some(host), Some(authority)) if !host.as_bytes().eq_ignore_ascii_case(authority) => {
            Some("the Host header and the request target name different hosts; send the same host in both")
        }
        _ => None,
    }
}

/// Closes the connection, because the following bytes may be the rest of this request or another one.
fn bad_request(reason: &str) -> Response<Body> {
    let mut response = ApiError::bad_request(reason).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A span per request, with OpenTelemetry's field names. It is a child of the caller's span if the request names one.
/// It has only the path, because a query may contain a signature.
fn span_of(id: &str, request: &Request<Incoming>) -> Span {
    tracing::info_span!(
        "request",
        id,
        http.request.method = %request.method(),
        url.path = request.uri().path(),
        http.response.status_code = field::Empty,
        traceparent = request.headers().get("traceparent").and_then(|header| header.to_str().ok()).filter(|text| TraceParent::parse(text).is_some()),
    )
}
