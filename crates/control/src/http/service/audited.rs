//! The audit around every request of the service: who, what, on which sandbox, from where, with what outcome, in what time.
//! The line is written before the answer goes out; when it cannot be, the answer is that.
//!
//! Requests without a valid key are counted in the metrics and not audited: there is nobody to name, and anybody could
//! fill the disk.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{FromRequestParts as _, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::Method;
use tracing::{Instrument as _, Span};

use crate::app::App;
use crate::clock::Timestamp;
use crate::edge::Peer;
use crate::http::auth::Caller;
use crate::http::error::ApiError;
use crate::service::{Access, AuditDown, ServiceError};
use crate::store::service::{AuditEntry, ServiceSandbox};

/// What a request was about, told by its handler with the answer.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct Subject {
    pub(in crate::http) sandbox: Option<String>,
    pub(in crate::http) agent: Option<String>,
    pub(in crate::http) task: Option<String>,
}

impl Subject {
    pub(in crate::http) fn sandbox(id: impl Into<String>) -> Self {
        Self { sandbox: Some(id.into()), ..Self::default() }
    }

    /// Takes over what the other one knows.
    pub(in crate::http) fn learn(&mut self, other: &Self) {
        let known = |mine: &mut Option<String>, theirs: &Option<String>| *mine = theirs.clone().or(mine.take());
        known(&mut self.sandbox, &other.sandbox);
        known(&mut self.agent, &other.agent);
        known(&mut self.task, &other.task);
    }
}

impl From<&ServiceSandbox> for Subject {
    fn from(row: &ServiceSandbox) -> Self {
        Self { sandbox: Some(row.id.clone()), agent: row.agent.clone(), task: row.task.clone() }
    }
}

impl Caller {
    pub(super) fn access(&self) -> Access {
        Access { team: self.team.clone(), scope: self.scope.clone(), actor: self.actor.clone() }
    }
}

/// In a task of its own: a client that goes away in the middle does not keep what it did out of the audit.
pub(super) async fn audited(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let answering = tokio::spawn(answer(app, request, next).instrument(Span::current()));
    answering.await.unwrap_or_else(|_| ApiError::internal(&ServiceError::Aborted).into_response())
}

async fn answer(app: Arc<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let (mut parts, body) = request.into_parts();
    let pattern = parts.extensions.get::<MatchedPath>().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let action = action_of(&parts.method, &pattern);
    let caller = match Caller::from_request_parts(&mut parts, &app).await {
        Ok(caller) => caller,
        Err(refusal) => {
            app.service.metrics.operation(action, refusal.code_or_default());
            return refusal.with_default_code().into_response();
        }
    };
    if let Err(down) = app.service.recorder.is_ready() {
        return audit_down(down);
    }
    let subject = subject_of(&pattern, parts.uri.path());
    let source = parts.extensions.get::<Peer>().map(|peer| peer.address.to_string());
    parts.extensions.insert(caller.clone());
    let response = next.run(Request::from_parts(parts, body)).await;
    let (response, code) = with_code(response);
    let subject = response.extensions().get::<Subject>().cloned().unwrap_or(subject);
    app.service.metrics.operation(action, code.unwrap_or("ok"));
    let entry = AuditEntry {
        at: Timestamp::now(),
        team: caller.team,
        actor: caller.actor,
        action: action.to_owned(),
        sandbox: subject.sandbox,
        agent: subject.agent.or_else(|| caller.scope.agent().map(str::to_owned)),
        task: subject.task,
        source,
        status: response.status().as_u16(),
        code: code.map(str::to_owned),
        micros: i64::try_from(started.elapsed().as_micros()).unwrap_or(i64::MAX),
    };
    match app.service.recorder.audit(entry).await {
        Ok(()) => response,
        Err(down) => audit_down(down),
    }
}

fn audit_down(down: AuditDown) -> Response {
    ApiError::audit_down(&down).into_response()
}

/// Sees to it that a refusal has a stable code, and says which.
fn with_code(mut response: Response) -> (Response, Option<&'static str>) {
    match response.extensions_mut().remove::<ApiError>() {
        Some(error) => {
            let error = error.with_default_code();
            let code = error.code_or_default();
            let mut renewed: Response<Body> = error.into_response();
            if let Some(subject) = response.extensions_mut().remove::<Subject>() {
                renewed.extensions_mut().insert(subject);
            }
            (renewed, Some(code))
        }
        None if response.status().is_client_error() => (response, Some("refused")),
        None => (response, None),
    }
}

/// The sandbox or task that the path names, for answers that do not tell it themselves.
fn subject_of(pattern: &str, path: &str) -> Subject {
    let named = || path.split('/').nth(4).map(|id| id.chars().take(64).collect::<String>());
    match pattern.split('/').nth(3) {
        Some("sandboxes") => Subject { sandbox: named(), ..Subject::default() },
        Some("git") if pattern.contains("{id}") => Subject { sandbox: named(), ..Subject::default() },
        Some("tasks") => Subject { task: named(), ..Subject::default() },
        Some("agents") => Subject { agent: named(), ..Subject::default() },
        _ => Subject::default(),
    }
}

/// What a route does, in a word that does not change.
fn action_of(method: &Method, pattern: &str) -> &'static str {
    match (method.as_str(), pattern.trim_start_matches("/api/v1/")) {
        ("POST", "sandboxes") => "sandbox.create",
        ("GET", "sandboxes") => "sandbox.list",
        ("GET", "sandboxes/{id}") => "sandbox.get",
        ("DELETE", "sandboxes/{id}") => "sandbox.destroy",
        (_, "sandboxes/{id}/execute") => "sandbox.execute",
        (_, "sandboxes/{id}/execute/stream") => "sandbox.execute_stream",
        ("PUT", "sandboxes/{id}/files") => "file.write",
        ("GET", "sandboxes/{id}/files") => "file.read",
        (_, "sandboxes/{id}/pause") => "sandbox.pause",
        (_, "sandboxes/{id}/resume") => "sandbox.resume",
        (_, "git/clone") => "git.clone",
        (_, "git/branch") => "git.branch",
        (_, "git/commit") => "git.commit",
        (_, "git/push") => "git.push",
        (_, "git/{id}/history") => "git.history",
        ("POST", "agents") => "agent.create",
        ("GET", "agents") => "agent.list",
        ("GET", "agents/{id}") => "agent.get",
        ("DELETE", "agents/{id}") => "agent.remove",
        (_, "agents/{id}/start-task") => "task.start",
        ("POST", "tasks") => "task.create",
        ("GET", "tasks") => "task.list",
        ("GET", "tasks/{id}") => "task.get",
        ("PATCH", "tasks/{id}") => "task.change",
        (_, "tasks/{id}/finish") => "task.finish",
        (_, "tasks/{id}/fail") => "task.fail",
        (_, "tasks/{id}/cancel") => "task.cancel",
        (_, "commands") => "command.list",
        (_, "commands/{id}") => "command.get",
        (_, "audit") => "audit.list",
        (_, "audit/export") => "audit.export",
        (_, "audit/verify") => "audit.verify",
        (_, "usage") => "usage.report",
        (_, "sse") => "event.follow",
        ("GET", "teams") => "team.list",
        ("PUT", "teams/{id}") => "team.ensure",
        ("PUT", "teams/{id}/members/{member}") => "team.add_member",
        ("DELETE", "teams/{id}/members/{member}") => "team.remove_member",
        _ => "other",
    }
}
