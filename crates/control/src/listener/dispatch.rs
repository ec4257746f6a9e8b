//! Routes each request to the edge or to the API, with an id for the log.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use isopod_api::{ApiError, MaxBody, Peer, TimeoutBody};
use isopod_otlp::TraceParent;
use isopod_peer::Origin;
use isopod_store::secrets::new_uuid;
use tower::ServiceExt as _;
use tracing::{Instrument as _, Span, field};

use super::clustered::{Clustered, mark_for_member};
use super::limits::ConnectionLimits;
use super::timeouts::{ActiveBody, ActiveRequests};
use super::unread::RequestBody;
use crate::edge::{Edge, Route, proxy, route};
use crate::http::BrowserRules;
use crate::telemetry::Kind;

/// Who sent a request.
#[derive(Clone, Debug)]
pub(super) enum Sender {
    Client(Peer),
    /// Another server of the cluster, for a client.
    Member(Arc<Origin>),
}

impl Sender {
    /// The client, in any case.
    pub(super) fn peer(&self) -> Peer {
        match self {
            Self::Client(peer) => *peer,
            Self::Member(origin) => origin.peer(),
        }
    }
}

pub(super) struct Dispatch {
    pub(super) edge: Edge,
    browsers: BrowserRules,
    api: Router,
    limits: ConnectionLimits,
    clustered: Option<Clustered>,
}

impl Dispatch {
    pub(super) fn new(
        edge: Edge,
        browsers: BrowserRules,
        api: Router,
        limits: ConnectionLimits,
        clustered: Option<Clustered>,
    ) -> Self {
        Self { edge, browsers, api, limits, clustered }
    }

    /// Answers one request. The connection counts as busy until the last byte of the response.
    pub(super) async fn answer(
        &self,
        sender: &Sender,
        requests: &Arc<ActiveRequests>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let active = requests.begin();
        let caller = match sender {
            Sender::Client(peer) => Origin::new(*peer, new_uuid(), request.headers()),
            Sender::Member(origin) => Origin::clone(origin),
        };
        let may_forward = self.clustered.is_some() && matches!(sender, Sender::Client(_));
        let own = may_forward.then(|| caller.clone().with_own_span());
        let span = span_of(&caller, own.as_ref(), &request);
        let origin = own.unwrap_or(caller);
        let request = request.map(|body| Body::new(RequestBody::new(body)));
        let refused = if requests.is_ambiguous() { Some(AMBIGUOUS_LENGTH) } else { ambiguous_host(&request) };
        let mut response = match refused {
            Some(reason) => bad_request(reason),
            None => self.route(sender, &origin, request).instrument(span.clone()).await,
        };
        if let Sender::Member(_) = sender {
            mark_for_member(&mut response);
        }
        span.record("http.response.status_code", response.status().as_u16());
        if let Ok(id) = HeaderValue::from_str(&origin.request_id) {
            response.headers_mut().insert("x-request-id", id);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            active.keep_forever();
            return response;
        }
        response.map(|body| Body::new(ActiveBody::new(body, active)))
    }

    async fn route(&self, sender: &Sender, origin: &Origin, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let way = route(&parts, &self.edge.domains, &self.edge.fleet);
        // What another server has forwarded is never forwarded again.
        let clustered = self.clustered.as_ref().filter(|_| matches!(sender, Sender::Client(_)));
        let request = Request::from_parts(parts, body);
        let (kind, response) = match (way, clustered) {
            (Route::Refused(refusal), _) => (Kind::Edge, refusal.response(request.headers())),
            (Route::Sandbox(address), None) => (Kind::Edge, proxy(&self.edge, address, sender.peer(), request).await),
            (Route::Sandbox(address), Some(clustered)) => {
                (Kind::Edge, clustered.answer_edge(self, address, origin, request).await)
            }
            (Route::Api, None) => (Kind::Api, self.answer_api(sender.peer(), request).await),
            (Route::Api, Some(clustered)) => (Kind::Api, clustered.answer_api(self, origin, request).await),
        };
        let status = response.status().as_u16();
        self.edge.fleet.counters.answered(kind, status);
        tracing::debug!(?kind, status, "answered");
        response
    }

    pub(super) async fn answer_api(&self, peer: Peer, request: Request<Body>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(peer);
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
fn span_of(caller: &Origin, own: Option<&Origin>, request: &Request<Incoming>) -> Span {
    tracing::info_span!(
        "request",
        id = caller.request_id,
        http.request.method = %request.method(),
        url.path = request.uri().path(),
        http.response.status_code = field::Empty,
        own_traceparent = own.and_then(|own| own.traceparent.as_deref()),
        traceparent = caller.traceparent.as_deref().filter(|text| TraceParent::parse(text).is_some()),
    )
}
