//! `POST /restore`: makes new connections for processes of another guest, which do not exist here yet.

use std::os::fd::AsRawFd;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use isopod_wire::checkpoint::{MAX_STATE, RestoredEnd, Restoring};

use crate::checkpoint::root::{RootError, RootProgram};
use crate::checkpoint::state::{GuestState, VERSION};
use crate::checkpoint::{Checkpoint, Phase, conflict};
use crate::connection::ProcessEnd;
use crate::fs::SavedWatcher;
use crate::gate::Closed;
use crate::http::{HttpError, Reply, json_reply, read_body};
use crate::interpreter::{ContextError, RestoringContexts};
use crate::logs::SavedBlock;
use crate::process::{RestoreError, RestoringProcesses};

/// Nothing should be under way in a sandbox that was just created.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Everything that becomes part of this guest when the processes are there.
#[derive(Debug)]
pub(super) struct Restoration {
    pub(super) processes: RestoringProcesses,
    /// None if this sandbox has no interpreter.
    pub(super) contexts: Option<RestoringContexts>,
    pub(super) watchers: Vec<SavedWatcher>,
    pub(super) log: Vec<SavedBlock>,
    /// The host fetches them. Closed when this is dropped: only the processes have them then.
    ends: Vec<ProcessEnd>,
    _program: RootProgram,
    _closed: Closed,
}

pub(super) async fn restore(checkpoint: &Checkpoint, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let body = read_body(request, MAX_STATE).await?;
    let mut phase = checkpoint.phase.lock().await;
    check_unused(checkpoint, &phase)?;
    let state = parse(&body)?;
    let closed = checkpoint.gate.close(CLOSE_TIMEOUT).await.ok_or_else(in_use)?;
    // Something may have started meanwhile.
    check_unused(checkpoint, &phase)?;
    let restoration = prepare(checkpoint, state, closed)?;
    let reply = json_reply(&Restoring { connections: restoration.ends.iter().map(restored_end).collect() });
    *phase = Phase::Restoring(Box::new(restoration));
    Ok(reply)
}

fn check_unused(checkpoint: &Checkpoint, phase: &Phase) -> Result<(), HttpError> {
    match phase {
        Phase::Running => {}
        Phase::Held(_) => return Err(conflict("the sandbox is held")),
        Phase::Restoring(_) => return Err(conflict("the sandbox is being restored already")),
    }
    let unused = checkpoint.processes.is_unused()
        && checkpoint.interpreter.as_ref().is_none_or(|interpreter| interpreter.is_unused());
    unused.then_some(()).ok_or_else(in_use)
}

fn in_use() -> HttpError {
    conflict("the sandbox is in use: only a new one can be restored")
}

fn parse(body: &[u8]) -> Result<GuestState, HttpError> {
    let invalid = |why: String| HttpError::new(StatusCode::BAD_REQUEST, format!("invalid state: {why}"));
    let state: GuestState = serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))?;
    if state.version > VERSION {
        return Err(invalid(format!("version {} was made by a newer guest", state.version)));
    }
    Ok(state)
}

fn prepare(checkpoint: &Checkpoint, state: GuestState, closed: Closed) -> Result<Restoration, HttpError> {
    let GuestState { root, processes, contexts, watchers, log, .. } = state;
    let mut ends = Vec::new();
    let program = RootProgram::write(root).map_err(root_error)?;
    let processes = checkpoint.processes.prepare_restore(processes, &mut ends).map_err(process_error)?;
    let contexts = match &checkpoint.interpreter {
        Some(interpreter) => Some(interpreter.prepare_restore(contexts, &mut ends).map_err(context_error)?),
        None if contexts.is_empty() => None,
        None => return Err(HttpError::new(StatusCode::BAD_REQUEST, "this sandbox has no interpreter")),
    };
    Ok(Restoration { processes, contexts, watchers, log, ends, _program: program, _closed: closed })
}

fn root_error(error: RootError) -> HttpError {
    let status = match error {
        RootError::Name => StatusCode::BAD_REQUEST,
        RootError::Write { .. } | RootError::Start { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    HttpError::new(status, error.to_string())
}

fn process_error(error: RestoreError) -> HttpError {
    let status = match error {
        RestoreError::Pid(_) => StatusCode::BAD_REQUEST,
        RestoreError::Streams { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    HttpError::new(status, error.to_string())
}

fn context_error(error: ContextError) -> HttpError {
    let status = match error {
        ContextError::Pid(_) | ContextError::Order => StatusCode::BAD_REQUEST,
        ContextError::Streams { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    HttpError::new(status, error.to_string())
}

fn restored_end(end: &ProcessEnd) -> RestoredEnd {
    RestoredEnd { connection: end.connection, fd: end.descriptor.as_raw_fd() }
}
