//! Finds the server for a request, and repairs wrong guesses.
//!
//! ```text
//! known? ── here ──────▶ handlers ── "it is on B" ──┐
//!   │                                               ▼
//!   └── on B ──▶ forward to B ── "not here" ──▶ ask the database, once more
//! ```
//!
//! A request moves on only if its body can be sent again. Handlers say that something is elsewhere before they have
//! changed anything.

use async_trait::async_trait;
use axum::body::Body;
use http::request::Parts;
use http::{Request, Response};
use isopod_api::{Elsewhere, HopSignal, MayForward};

use crate::cluster::Cluster;
use crate::forward::{ForwardError, forward, take_signal};
use crate::origin::Origin;
use crate::question::Question;
use crate::replay::Replay;
use crate::server_id::ServerId;

/// How many servers may see a request. The first guess, the answer of the database, and one more if it has changed
/// meanwhile.
const MAX_TURNS: usize = 4;
/// How many other servers are tried for a new sandbox.
const MAX_PLACES: usize = 8;

/// This server's own side: how it answers a request, and how it says that another server can't.
#[async_trait]
pub trait Here: Send + Sync {
    async fn answer(&self, request: Request<Body>) -> Response<Body>;

    /// Whether this server certainly has it.
    fn has(&self, question: &Question) -> bool;

    /// The response if the server that has it can't be reached. Clients may repeat the request.
    fn unreachable(&self, server: String) -> Response<Body>;

    /// The response if nobody knows whether the request was carried out.
    fn lost(&self, server: String) -> Response<Body>;
}

/// Who answers next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Turn {
    Here,
    There(ServerId),
}

impl Cluster {
    /// Answers a client's request here or by another member. `may_move`: whether other servers may do it if this one has
    /// no room, as for a new sandbox.
    pub async fn answer(
        &self,
        here: &dyn Here,
        question: Option<Question>,
        may_move: bool,
        origin: &Origin,
        request: Request<Body>,
    ) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(MayForward);
        let replay = Replay::of(body);
        let mut turn = self.first_turn(here, question.as_ref()).await;
        for _ in 0..MAX_TURNS {
            let Some(body) = replay.copy() else { break };
            let request = Request::from_parts(parts.clone(), body);
            turn = match turn {
                Turn::Here => {
                    let response = here.answer(request).await;
                    match next_of(&response) {
                        Some(Next::On(server)) => self.learn(question.as_ref(), server),
                        Some(Next::AnyOther) if may_move => {
                            return self.place(&replay, &parts, question.as_ref(), origin, response).await;
                        }
                        Some(Next::AnyOther) | None => return response,
                    }
                }
                Turn::There(server) => match self.forward(&server, origin, request).await {
                    Ok((response, Some(HopSignal::Elsewhere))) => {
                        drop(response);
                        tracing::debug!(%server, question = question.as_ref().map(field), "a guess was wrong");
                        self.ask_again(here, question.as_ref()).await
                    }
                    Ok((response, _)) => return response,
                    Err(error) => return self.failed(here, question.as_ref(), &server, &parts, &error),
                },
            };
        }
        // It moves from server to server, or too much of the body was read by the wrong one.
        match turn {
            Turn::There(server) => here.unreachable(self.name_of(&server)),
            Turn::Here => here.unreachable("that has it".to_owned()),
        }
    }

    async fn first_turn(&self, here: &dyn Here, question: Option<&Question>) -> Turn {
        let Some(question) = question else { return Turn::Here };
        if here.has(question) {
            return Turn::Here;
        }
        match self.locations.get(question) {
            Some(server) => self.turn_of(server),
            None => self.ask(question).await,
        }
    }

    /// Asks the database, for what it can tell by the question alone. Handlers answer the others.
    async fn ask(&self, question: &Question) -> Turn {
        let asked = match question {
            Question::Sandbox(id) => self.store.server_of_sandbox(id).await,
            Question::ServiceSandbox(id) => self.store.server_of_service_sandbox(id).await,
            Question::Build(id) => self.store.server_of_build(id).await,
            Question::Named(..) => Ok(None),
        };
        match asked {
            Ok(Some(server)) => self.learn(Some(question), &server),
            // The handler says what is wrong: it doesn't exist, or the database is away.
            Ok(None) | Err(_) => Turn::Here,
        }
    }

    async fn ask_again(&self, here: &dyn Here, question: Option<&Question>) -> Turn {
        let Some(question) = question else { return Turn::Here };
        self.locations.forget(question);
        if here.has(question) { Turn::Here } else { self.ask(question).await }
    }

    fn learn(&self, question: Option<&Question>, server: &str) -> Turn {
        let Ok(server) = ServerId::parse(server) else { return Turn::Here };
        if let Some(question) = question {
            self.locations.insert(question.clone(), server.clone());
        }
        self.turn_of(server)
    }

    fn turn_of(&self, server: ServerId) -> Turn {
        if server == self.own { Turn::Here } else { Turn::There(server) }
    }

    /// Sends the request to a member, without looking for another one.
    pub(crate) async fn forward(
        &self,
        server: &ServerId,
        origin: &Origin,
        request: Request<Body>,
    ) -> Result<(Response<Body>, Option<HopSignal>), ForwardError> {
        let mut response = forward(&self.pool, server, origin, request, &self.stop).await?;
        let signal = take_signal(response.headers_mut());
        Ok((response, signal))
    }

    fn failed(
        &self,
        here: &dyn Here,
        question: Option<&Question>,
        server: &ServerId,
        parts: &Parts,
        error: &ForwardError,
    ) -> Response<Body> {
        tracing::debug!(%server, error = isopod_wire::error_chain(error), "could not forward a request");
        // It may be on another server by now.
        question.iter().for_each(|question| self.locations.forget(question));
        let name = self.name_of(server);
        match error {
            ForwardError::Lost(_) if !parts.method.is_idempotent() => here.lost(name),
            ForwardError::Lost(_) | ForwardError::NotSent(_) => here.unreachable(name),
        }
    }

    /// Tries other servers for what this one has no room for. If none has, the caller gets this server's refusal.
    async fn place(
        &self,
        replay: &Replay,
        parts: &Parts,
        question: Option<&Question>,
        origin: &Origin,
        refusal: Response<Body>,
    ) -> Response<Body> {
        let order = match self.placement.order(self.members.reachable()).await {
            Ok(order) => order,
            Err(error) => {
                tracing::warn!(error = isopod_wire::error_chain(&error), "could not choose another server");
                return refusal;
            }
        };
        for server in order.into_iter().take(MAX_PLACES) {
            let Some(body) = replay.copy() else { break };
            let request = Request::from_parts(parts.clone(), body);
            match self.forward(&server, origin, request).await {
                Ok((response, None)) => {
                    self.learn(question, server.as_str());
                    return response;
                }
                // It has no room either, or it says that a third one must do it, which has said no or comes later.
                Ok((_, Some(_))) => {}
                Err(error @ ForwardError::NotSent(_)) => {
                    tracing::debug!(%server, error = isopod_wire::error_chain(&error), "could not try a server");
                }
                // It may have made the sandbox.
                Err(ForwardError::Lost(error)) => {
                    tracing::warn!(%server, error = isopod_wire::error_chain(&error), "lost a server while it made a sandbox");
                    return refusal;
                }
            }
        }
        refusal
    }

    fn name_of(&self, server: &ServerId) -> String {
        self.members.find(server).map_or_else(|| server.to_string(), |member| member.name)
    }
}

/// What a response of this server says about who should answer.
enum Next<'r> {
    On(&'r str),
    AnyOther,
}

fn next_of(response: &Response<Body>) -> Option<Next<'_>> {
    match response.extensions().get::<Elsewhere>()? {
        Elsewhere::On { server } => Some(Next::On(server)),
        Elsewhere::AnyOther => Some(Next::AnyOther),
    }
}

fn field(question: &Question) -> tracing::field::DisplayValue<&Question> {
    tracing::field::display(question)
}
