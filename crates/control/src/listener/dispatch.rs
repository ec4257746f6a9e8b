//! Gives each request to the edge or to the API, with an id to find it by in the log.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use isopod_api::{ApiError, MaxBody, Peer, SteadyBody};
use isopod_otlp::TraceParent;
use isopod_store::secrets::new_uuid;
use tower::ServiceExt as _;
use tracing::{Instrument as _, Span, field};

use super::limits::ConnectionLimits;
use super::patience::{Patience, PatientBody};
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

    /// Answers one request. The connection is busy until the answer's last byte.
    pub(super) async fn answer(
        &self,
        peer: Peer,
        patience: &Arc<Patience>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let under_way = patience.begin();
        let id = new_uuid();
        let span = span_of(&id, &request);
        let request = request.map(|body| Body::new(RequestBody::new(body)));
        let refused = if patience.is_ambiguous() { Some(TWO_LENGTHS) } else { odd_host(&request) };
        let mut response = match refused {
            Some(reason) => bad_request(reason),
            None => self.route(peer, request).instrument(span.clone()).await,
        };
        span.record("http.response.status_code", response.status().as_u16());
        if let Ok(id) = HeaderValue::from_str(&id) {
            response.headers_mut().insert("x-request-id", id);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            under_way.for_ever();
            return response;
        }
        response.map(|body| Body::new(PatientBody::new(body, under_way)))
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
        let body = SteadyBody::new(body, self.limits.body_timeout);
        let request = Request::from_parts(parts, Body::new(body));
        let mut response = match self.api.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        permission.mark(response.headers_mut());
        response
    }
}

const TWO_LENGTHS: &str =
    "the request has no clear length: send a plain Content-Length or Transfer-Encoding, and only one of them";

/// Why a request does not say clearly for whom it is (RFC 9112, 3.2).
fn odd_host(request: &Request<Body>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    match (first, authority) {
        _ if second.is_some() => Some("the request has several Host headers; send one"),
        (Some(host), Some(authority)) if !host.as_bytes().eq_ignore_ascii_case(authority) => {
            Some("the Host header and the request's address name different hosts; send the same in both")
        }
        _ => None,
    }
}

/// The connection ends with it: what follows may be the rest of this request or another one.
fn bad_request(reason: &str) -> Response<Body> {
    let mut response = ApiError::bad_request(reason).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// One per request, under the names that OpenTelemetry has for these things; a child of the caller's where it names one.
/// Only the path: a query may carry a signature.
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
