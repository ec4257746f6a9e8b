//! Audits all requests that change something, and all requests of the service: who, what, on which sandbox, from where,
//! with what result, in what time.
//!
//! Requests without a valid key are not audited: they have no caller to name, and anybody could fill the disk with
//! them.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use isopod_store::clock::Timestamp;
use isopod_store::service::{AuditEntry, Record};
use tracing::{Instrument as _, Span};

use crate::actions::{Actions, subject_of};
use crate::audit::{Recorder, Subject};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::hop::{Elsewhere, MayForward};
use crate::peer::Peer;

/// Where the route's access check stores the caller.
#[derive(Clone, Debug)]
pub(crate) struct AuditedCaller {
    caller: Arc<OnceLock<Caller>>,
    recorder: Recorder,
}

impl AuditedCaller {
    /// Refuses the request if its line could not be written, because it would have to wait.
    pub(crate) fn is(&self, caller: &Caller) -> Result<(), ApiError> {
        self.recorder.is_ready().map_err(|down| ApiError::audit_down(&down))?;
        // A handler that checks again finds the same caller.
        let _ = self.caller.set(caller.clone());
        Ok(())
    }
}

/// When the audit line of a request counts as recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it is queued, before the response is sent. It is written in a batch with others, and the response does not
    /// wait for that.
    Queued,
    /// When it is written. If the line cannot be written, the response is replaced by an error. If the client hangs up,
    /// the request continues, so that the line has its result.
    Written,
}

/// The middleware for routes that declare an action.
#[derive(Clone, Debug)]
pub struct Audit {
    pub recorder: Recorder,
    pub actions: Actions,
    pub durability: Durability,
}

/// Writes an audit line for every request whose route declares an action.
pub async fn audited(State(audit): State<Audit>, request: Request, next: Next) -> Response {
    let pattern = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let Some(action) = audit.actions.find(request.method(), pattern) else { return next.run(request).await };
    match audit.durability {
        Durability::Queued => answer_queued(audit.recorder, action, request, next).await,
        Durability::Written => {
            let answering = answer_written(audit.recorder, action, request, next).instrument(Span::current());
            tokio::spawn(answering).await.unwrap_or_else(|died| ApiError::internal(&died).into_response())
        }
    }
}

async fn answer_queued(recorder: Recorder, action: &'static str, mut request: Request, next: Next) -> Response {
    let may_forward = request.extensions().get::<MayForward>().is_some();
    let line = Line::begin(&recorder, action, &mut request);
    let response = next.run(request).await;
    if may_forward && goes_elsewhere(&response) {
        line.leave();
        return response;
    }
    if let Some(entry) = line.end(&response) {
        recorder.note(Record::Audit(entry)).await;
    }
    response
}

async fn answer_written(recorder: Recorder, action: &'static str, mut request: Request, next: Next) -> Response {
    let may_forward = request.extensions().get::<MayForward>().is_some();
    let line = Line::begin(&recorder, action, &mut request);
    let response = next.run(request).await;
    if may_forward && goes_elsewhere(&response) {
        line.leave();
        return response;
    }
    let Some(entry) = line.end(&response) else { return response };
    match recorder.audit(entry).await {
        Ok(()) => response,
        Err(down) => ApiError::audit_down(&down).into_response(),
    }
}

/// Whether another server of the cluster answers the request, and audits it.
fn goes_elsewhere(response: &Response) -> bool {
    matches!(response.extensions().get::<Elsewhere>(), Some(Elsewhere::On { .. }))
}

/// The status of a request whose client hung up before the response.
const CLIENT_GONE: u16 = 499;

/// An unfinished audit line. If it is dropped without a response, because the client hung up or the handler panicked,
/// it is recorded too.
struct Line {
    recorder: Recorder,
    audited_caller: AuditedCaller,
    action: &'static str,
    subject: Subject,
    source: Option<String>,
    started: Instant,
    is_recorded: bool,
}

impl Line {
    fn begin(recorder: &Recorder, action: &'static str, request: &mut Request) -> Self {
        let audited_caller = AuditedCaller { caller: Arc::default(), recorder: recorder.clone() };
        request.extensions_mut().insert(audited_caller.clone());
        let pattern = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
        Self {
            recorder: recorder.clone(),
            audited_caller,
            action,
            subject: subject_of(pattern, request.uri().path()),
            source: request.extensions().get::<Peer>().map(|peer| peer.address.to_string()),
            started: Instant::now(),
            is_recorded: false,
        }
    }

    /// Another server writes the line.
    fn leave(mut self) {
        self.is_recorded = true;
    }

    /// Returns `None` if the request had no valid key.
    fn end(mut self, response: &Response) -> Option<AuditEntry> {
        self.is_recorded = true;
        if let Some(subject) = response.extensions().get::<Subject>() {
            self.subject.merge(subject);
        }
        let code = match response.extensions().get::<ApiError>() {
            Some(error) => Some(error.code_or_default()),
            None => response.status().is_client_error().then_some("refused"),
        };
        self.entry(response.status().as_u16(), code)
    }

    fn entry(&self, status: u16, code: Option<&str>) -> Option<AuditEntry> {
        let caller = self.audited_caller.caller.get()?;
        Some(AuditEntry {
            at: Timestamp::now(),
            team: caller.team.clone(),
            actor: caller.actor.clone(),
            action: self.action.to_owned(),
            sandbox: self.subject.sandbox.clone(),
            agent: self.subject.agent.clone().or_else(|| caller.scope.agent().map(str::to_owned)),
            task: self.subject.task.clone(),
            source: self.source.clone(),
            status,
            code: code.map(str::to_owned),
            micros: i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX),
        })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_recorded {
            return;
        }
        let (status, code) = match std::thread::panicking() {
            true => (StatusCode::INTERNAL_SERVER_ERROR.as_u16(), "internal_server_error"),
            false => (CLIENT_GONE, "client_gone"),
        };
        if let Some(entry) = self.entry(status, Some(code)) {
            self.recorder.note_at_once(Record::Audit(entry));
        }
    }
}
