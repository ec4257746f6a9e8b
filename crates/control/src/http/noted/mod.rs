//! The audit around everything outside the service that changes something: E2B's own routes, keys, webhooks, templates,
//! runs and storage. Its lines stand in the same chain as the service's.
//!
//! A line is queued before its answer goes out and written in a batch with others; the answer does not wait for that. Who
//! only looks is not noted, and neither is who shows no valid key: there is nobody to name.

mod action;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::auth::Caller;
use super::error::ApiError;
use super::service::Subject;
use crate::app::App;
use crate::clock::Timestamp;
use crate::edge::Peer;
use crate::service::Recorder;
use crate::store::service::{AuditEntry, Record};
use action::{action_of, subject_of};

/// Where a request's handler leaves who asks, once it has looked.
#[derive(Clone, Debug, Default)]
pub(super) struct Asker(Arc<OnceLock<Caller>>);

impl Asker {
    pub(super) fn is(&self, caller: &Caller) {
        // A handler that looks twice finds the same.
        let _ = self.0.set(caller.clone());
    }
}

pub(super) async fn noted(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    // What cannot be recorded could not be noted either, and the line would wait with all others.
    if let Err(down) = app.service.recorder.is_ready() {
        return ApiError::audit_down(&down).into_response();
    }
    let line = Line::begin(&app, &mut request);
    let response = next.run(request).await;
    if let Some(entry) = line.end(&response) {
        app.service.recorder.note(Record::Audit(entry)).await;
    }
    response
}

/// What happens to have no outcome when its client hangs up.
const CLIENT_GONE: u16 = 499;

/// A line in the making. One whose client hangs up is noted when it is dropped.
struct Line {
    recorder: Recorder,
    asker: Asker,
    action: &'static str,
    subject: Subject,
    source: Option<String>,
    started: Instant,
    is_told: bool,
}

impl Line {
    fn begin(app: &App, request: &mut Request) -> Self {
        let asker = Asker::default();
        request.extensions_mut().insert(asker.clone());
        let pattern = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
        Self {
            recorder: app.service.recorder.clone(),
            asker,
            action: action_of(request.method(), pattern),
            subject: subject_of(pattern, request.uri().path()),
            source: request.extensions().get::<Peer>().map(|peer| peer.address.to_string()),
            started: Instant::now(),
            is_told: false,
        }
    }

    /// None where nobody showed a valid key.
    fn end(mut self, response: &Response) -> Option<AuditEntry> {
        self.is_told = true;
        if let Some(told) = response.extensions().get::<Subject>() {
            self.subject.learn(told);
        }
        let code = match response.extensions().get::<ApiError>() {
            Some(error) => Some(error.code_or_default()),
            None => response.status().is_client_error().then_some("refused"),
        };
        self.entry(response.status().as_u16(), code)
    }

    fn entry(&self, status: u16, code: Option<&str>) -> Option<AuditEntry> {
        let caller = self.asker.0.get()?;
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
        if self.is_told {
            return;
        }
        if let Some(entry) = self.entry(CLIENT_GONE, Some("client_gone")) {
            self.recorder.note_at_once(Record::Audit(entry));
        }
    }
}
