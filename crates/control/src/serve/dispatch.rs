//! Gives each request to the edge or to the API, with an id to find it by in the log.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::ServiceExt as _;
use tracing::{Instrument as _, Span, field};

use super::patience::{Patience, PatientBody};
use super::unread::RequestBody;
use crate::app::App;
use crate::edge::{Peer, Route, carry, route};
use crate::http::{check_browser, router};
use crate::secrets::new_uuid;
use crate::telemetry::{Kind, TraceParent};

pub(super) struct Dispatch {
    app: Arc<App>,
    api: Router,
}

impl Dispatch {
    pub(super) fn new(app: Arc<App>) -> Self {
        let api = router(Arc::clone(&app));
        Self { app, api }
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
        let mut response = self.route(peer, request).instrument(span.clone()).await;
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
        let way = route(&parts, &self.app.domain, &self.app.fleet);
        let (kind, response) = match way {
            Route::Sandbox(address) => {
                let request = Request::from_parts(parts, body);
                (Kind::Edge, carry(&self.app.fleet, address, peer, request).await)
            }
            Route::Refused(refusal) => (Kind::Edge, refusal.response(&parts.headers)),
            Route::Api => {
                parts.extensions.insert(peer);
                (Kind::Api, self.answer_api(Request::from_parts(parts, body)).await)
            }
        };
        let status = response.status().as_u16();
        self.app.fleet.counters.answered(kind, status);
        tracing::debug!(?kind, status, "answered");
        response
    }

    async fn answer_api(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let permission = match check_browser(&self.app, &parts) {
            Ok(permission) => permission,
            Err(refusal) => return *refusal,
        };
        let request = Request::from_parts(parts, body);
        let mut response = match self.api.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        permission.mark(response.headers_mut());
        response
    }
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
