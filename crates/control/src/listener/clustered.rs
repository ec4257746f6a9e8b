//! Requests that another server of the cluster may have to answer: how this server answers them itself, and how it says
//! that another one can't.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use isopod_api::{ApiError, HopSignal, LocatedRoutes, Location, Peer};
use isopod_peer::{Cluster, Here, Origin, Question};

use super::dispatch::Dispatch;
use crate::edge::{Address, Refusal, proxy};

/// The cluster, and the routes that tell what a request is about.
#[derive(Clone, Debug)]
pub(crate) struct Clustered {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) routes: LocatedRoutes,
}

impl Clustered {
    /// Forwards traffic of a sandbox to its server.
    pub(super) async fn answer_edge(
        &self,
        dispatch: &Dispatch,
        address: Address,
        origin: &Origin,
        request: Request<Body>,
    ) -> Response<Body> {
        let question = Question::Sandbox(address.sandbox.clone());
        let (peer, asked_with) = (peer_of(origin), request.headers().clone());
        let here = HereEdge { dispatch, address, peer, asked_with };
        self.cluster.answer(&here, Some(question), false, origin, request).await
    }

    /// Forwards a request to the API.
    pub(super) async fn answer_api(
        &self,
        dispatch: &Dispatch,
        origin: &Origin,
        request: Request<Body>,
    ) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let (question, is_new) = self.question_of(&parts);
        let here = HereApi { dispatch, peer: peer_of(origin) };
        self.cluster.answer(&here, question, is_new, origin, Request::from_parts(parts, body)).await
    }

    fn question_of(&self, parts: &Parts) -> (Option<Question>, bool) {
        match self.routes.find(&parts.method, parts.uri.path()) {
            Some((Location::NewSandbox, _)) => (None, true),
            // A run or an execution gets its sandbox with its first command.
            Some((by @ Location::Named(_), name)) => (Question::of(by, name, &parts.headers), true),
            Some((by, name)) => (Question::of(by, name, &parts.headers), false),
            None => (None, false),
        }
    }
}

/// Tells the member that has forwarded a request what it should do with the response. What a sandbox says there is
/// removed.
pub(super) fn mark_for_member(response: &mut Response<Body>) {
    let signal = response.extensions().get().map(HopSignal::of);
    response.headers_mut().remove(HopSignal::HEADER);
    if let Some(signal) = signal {
        response.headers_mut().insert(HopSignal::HEADER, http::HeaderValue::from_static(signal.text()));
    }
}

fn peer_of(origin: &Origin) -> Peer {
    Peer { is_forwarded: false, ..origin.peer() }
}

struct HereEdge<'d> {
    dispatch: &'d Dispatch,
    address: Address,
    peer: Peer,
    /// The headers of the request, which decide how a refusal looks.
    asked_with: HeaderMap,
}

#[async_trait]
impl Here for HereEdge<'_> {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        proxy(&self.dispatch.edge, self.address.clone(), self.peer, request).await
    }

    fn has(&self, _: &Question) -> bool {
        self.dispatch.edge.fleet.find(&self.address.sandbox).is_some()
    }

    fn unreachable(&self, server: String) -> Response<Body> {
        Refusal::ServerUnreachable(self.address.sandbox.clone(), server).response(&self.asked_with)
    }

    fn lost(&self, server: String) -> Response<Body> {
        self.unreachable(server)
    }
}

struct HereApi<'d> {
    dispatch: &'d Dispatch,
    peer: Peer,
}

#[async_trait]
impl Here for HereApi<'_> {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        self.dispatch.answer_api(self.peer, request).await
    }

    fn has(&self, question: &Question) -> bool {
        matches!(question, Question::Sandbox(id) if self.dispatch.edge.fleet.find(id).is_some())
    }

    fn unreachable(&self, server: String) -> Response<Body> {
        ApiError::server_unreachable(server).into_response()
    }

    fn lost(&self, server: String) -> Response<Body> {
        ApiError::server_lost(&server).into_response()
    }
}
