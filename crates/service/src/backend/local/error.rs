//! Maps errors of the fleet to backend errors.

use std::time::Duration;

use isopod_control::lifecycle::{ActError, CreateRefusal, DRAIN_RETRY, OnceRefusal, Refusal, TeamLimitReached};
use isopod_control::templates::FindError;
use isopod_wire::SandboxId;
use isopod_wire::node::{CreateError, NodeError};

use super::super::{BackendError, Effect, Place};

/// When to retry if nothing better is known.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// A template that is being built takes a while.
const BUILDING: Duration = Duration::from_secs(10);
const FULL: Duration = Duration::from_secs(2);
const AWAY: Duration = Duration::from_secs(5);

pub(super) fn of_once(refusal: OnceRefusal) -> BackendError {
    let message = refusal.to_string();
    match refusal {
        OnceRefusal::Create(refusal) => of_create(refusal),
        OnceRefusal::Store(_) => trouble("the store failed", refusal),
        OnceRefusal::Ended(_) | OnceRefusal::Mismatch => BackendError::Conflict { message },
        OnceRefusal::InProgress => later(message, DEFAULT_RETRY_AFTER, Effect::Unknown),
    }
}

pub(super) fn of_find(error: FindError) -> BackendError {
    let message = error.to_string();
    match error {
        FindError::Name(_) | FindError::IsSnapshot(_) => BackendError::Invalid { message },
        FindError::NotFound(_) | FindError::NoTag { .. } | FindError::Forbidden(_) => {
            BackendError::NotFound { message }
        }
        FindError::Store(_) => trouble("the store failed", error),
    }
}

pub(super) fn of_create(refusal: CreateRefusal) -> BackendError {
    let message = refusal.to_string();
    match refusal {
        CreateRefusal::TeamLimit(refusal) => of_team_limit(refusal),
        CreateRefusal::Draining(_) => later(message, DRAIN_RETRY, Effect::None),
        CreateRefusal::Network(_) | CreateRefusal::Features(_) => BackendError::Invalid { message },
        CreateRefusal::Node(error) => of_node_create(error),
        CreateRefusal::NodeTimeout(limit) => {
            BackendError::Timeout { what: "the node".to_owned(), limit, place: Place::Backend }
        }
        CreateRefusal::Store(_) => trouble("the store failed", refusal),
        CreateRefusal::SessionDiffers(_) | CreateRefusal::Session(_) | CreateRefusal::SessionTaken => {
            BackendError::Conflict { message }
        }
        CreateRefusal::Aborted => failed(refusal),
    }
}

fn of_node_create(error: CreateError) -> BackendError {
    let message = error.to_string();
    match error {
        CreateError::UnknownTemplate(_) | CreateError::UnknownSnapshot(_) => BackendError::NotFound { message },
        CreateError::Memory(_) | CreateError::NoMemory(_) => BackendError::Conflict { message },
        CreateError::TemplateNotReady { .. } => later(message, BUILDING, Effect::None),
        CreateError::Full(_) => later(message, FULL, Effect::None),
        CreateError::Workspace(_) => later(message, AWAY, Effect::None),
        CreateError::Limits(_) | CreateError::Mounts(_) => BackendError::Invalid { message },
        CreateError::Exists(_) | CreateError::Failed(_) => failed(error),
    }
}

fn of_team_limit(refusal: TeamLimitReached) -> BackendError {
    let retry_after = match refusal {
        // Someone has to end a sandbox first.
        TeamLimitReached::Concurrent(_) => None,
        TeamLimitReached::Rate { wait, .. } => Some(wait),
    };
    BackendError::Quota { message: refusal.to_string(), retry_after }
}

pub(super) fn of_act(id: &SandboxId, error: ActError) -> BackendError {
    match error {
        ActError::Refused(refusal) => of_refusal(id, refusal),
        ActError::TeamLimit(refusal) => of_team_limit(refusal),
        ActError::Draining(refusal) => later(refusal.to_string(), DRAIN_RETRY, Effect::None),
        ActError::Feature(refusal) => BackendError::Conflict { message: refusal.to_string() },
        ActError::NoMemory(_) => BackendError::Conflict { message: error.to_string() },
        ActError::Node(error @ (NodeError::Memory { .. } | NodeError::NoMemory { .. })) => {
            BackendError::Conflict { message: error.to_string() }
        }
        ActError::Node(NodeError::NotFound(_)) => of_refusal(id, Refusal::NotFound),
        ActError::Node(NodeError::WrongState { .. }) => of_refusal(id, Refusal::Busy),
        ActError::NodeTimeout(limit) => {
            BackendError::Timeout { what: "the node".to_owned(), limit, place: Place::Backend }
        }
        ActError::GuestUnresponsive => later(error.to_string(), DEFAULT_RETRY_AFTER, Effect::None),
        ActError::Store(_) => trouble("the store failed", error),
        ActError::Node(_) | ActError::NodePanicked => failed(error),
    }
}

fn of_refusal(id: &SandboxId, refusal: Refusal) -> BackendError {
    let message = refusal.to_string();
    match refusal {
        Refusal::NotFound => super::gone(id),
        Refusal::AlreadyPaused | Refusal::Paused | Refusal::NeedsConnect => BackendError::Conflict { message },
        Refusal::Busy => later(message, DEFAULT_RETRY_AFTER, Effect::None),
    }
}

/// A temporary refusal.
fn later(message: String, wait: Duration, effect: Effect) -> BackendError {
    BackendError::Unavailable { message, retry_after: Some(wait), effect, place: Place::Sandbox, source: None }
}

/// A temporary problem of the server itself.
fn trouble(message: &str, error: impl std::error::Error + Send + Sync + 'static) -> BackendError {
    BackendError::Unavailable {
        message: message.to_owned(),
        retry_after: Some(DEFAULT_RETRY_AFTER),
        effect: Effect::Unknown,
        place: Place::Backend,
        source: Some(Box::new(error)),
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> BackendError {
    let message = "the node failed".to_owned();
    BackendError::Internal { message, place: Place::Backend, source: Some(Box::new(error)) }
}
