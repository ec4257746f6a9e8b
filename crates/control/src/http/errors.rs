//! Maps errors of the lifecycle and of templates to responses.

use std::time::Duration;

use http::StatusCode;
use isopod_api::{ApiError, body_error};
use isopod_wire::FeatureError;
use isopod_wire::node::{CreateError, NodeError};

use crate::lifecycle::{ActError, CreateRefusal, DRAIN_RETRY, Draining, Refusal, SnapshotError, TeamLimitReached};
use crate::templates::{ContextError, FindError, PlanError, TooManyBuilds, UploadError};

impl From<TeamLimitReached> for ApiError {
    fn from(refusal: TeamLimitReached) -> Self {
        let wait = match refusal {
            TeamLimitReached::Concurrent(_) => Duration::from_secs(1),
            TeamLimitReached::Rate { wait, .. } => wait,
        };
        Self::new(StatusCode::TOO_MANY_REQUESTS, refusal.to_string()).retry_in(wait)
    }
}

impl From<Draining> for ApiError {
    fn from(refusal: Draining) -> Self {
        let refused = Self::new(StatusCode::SERVICE_UNAVAILABLE, refusal.to_string());
        refused.with_code("server_draining").retry_in(DRAIN_RETRY).for_any_other()
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::NotFound => Self::not_found(message),
            Refusal::AlreadyPaused | Refusal::Paused | Refusal::NeedsConnect => Self::conflict(message),
            Refusal::Busy => Self::conflict(message).retry_in(Duration::from_secs(1)),
        }
    }
}

impl From<ActError> for ApiError {
    fn from(error: ActError) -> Self {
        match error {
            ActError::Refused(refusal) => refusal.into(),
            ActError::TeamLimit(refusal) => refusal.into(),
            ActError::Draining(refusal) => refusal.into(),
            ActError::Feature(refusal) => feature_error(&refusal),
            ActError::Store(error) => error.into(),
            ActError::GuestUnresponsive => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).without_retry()
            }
            ActError::Node(NodeError::NotFound(_)) => Refusal::NotFound.into(),
            ActError::Node(NodeError::WrongState { .. }) => Refusal::Busy.into(),
            ActError::Node(NodeError::NotStopped(_)) => {
                let message = "could not pause the sandbox, which keeps running: a process in it is blocked, for example on the workspace";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_in(Duration::from_secs(5))
            }
            ActError::NoMemory(_) => {
                let refused = Self::new(StatusCode::NOT_IMPLEMENTED, error.to_string());
                refused.with_code("memory_snapshots_unavailable").without_retry()
            }
            ActError::Node(NodeError::NoMemory { reason, .. }) => {
                let message = format!("this server cannot save or restore the memory of sandboxes: {reason}");
                let refused = Self::new(StatusCode::NOT_IMPLEMENTED, message);
                refused.with_code("memory_snapshots_unavailable").without_retry()
            }
            ActError::Node(NodeError::Memory { reason, .. }) => {
                let message = format!("the sandbox's memory cannot be saved or restored: {reason}");
                Self::conflict(message).with_code("memory_not_saved").without_retry()
            }
            ActError::Node(NodeError::Workspace { reason, .. }) => CreateError::Workspace(reason).into(),
            ActError::Node(_) | ActError::NodePanicked => Self::internal(&error),
            ActError::NodeTimeout(_) => Self::new(StatusCode::GATEWAY_TIMEOUT, error.to_string()),
        }
    }
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        let message = error.to_string();
        match error {
            SnapshotError::Act(ActError::NoMemory(_)) => {
                let message = format!("{message}; with `memory: false`, a snapshot of the files can be taken");
                let refused = Self::new(StatusCode::NOT_IMPLEMENTED, message);
                refused.with_code("memory_snapshots_unavailable").without_retry()
            }
            SnapshotError::Act(error) => error.into(),
            SnapshotError::NameTaken(_) => Self::conflict(message).with_code("name_taken"),
            SnapshotError::TooMany(_) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, message).with_code("too_many_snapshots").without_retry()
            }
            SnapshotError::TooLarge { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, message).with_code("snapshots_too_large").without_retry()
            }
            SnapshotError::Deleted => Self::conflict(message),
            SnapshotError::Store(error) => error.into(),
            SnapshotError::Aborted => Self::internal(&error),
        }
    }
}

impl From<CreateRefusal> for ApiError {
    fn from(refusal: CreateRefusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            CreateRefusal::TeamLimit(refusal) => refusal.into(),
            CreateRefusal::Draining(refusal) => refusal.into(),
            CreateRefusal::Network(_) => Self::bad_request(message),
            CreateRefusal::Features(refusal) => feature_error(&refusal),
            CreateRefusal::SessionDiffers(_) => {
                Self::conflict(format!("{message} or other limits; end it first or use another session key"))
            }
            CreateRefusal::SessionTaken => Self::conflict(message).retry_in(Duration::from_secs(1)),
            CreateRefusal::Session(error) => error.into(),
            CreateRefusal::Store(error) => error.into(),
            CreateRefusal::Node(error) => error.into(),
            CreateRefusal::NodeTimeout(_) => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, message).with_code("sandbox_placement_timeout")
            }
            CreateRefusal::Aborted => Self::internal(&refusal).with_code("sandbox_create_failed"),
        }
    }
}

/// Names what is left if the memory of a snapshot cannot be restored, as after an upgrade of the host's libraries.
pub(super) fn advise_files_only(error: ApiError) -> ApiError {
    const ADVICE: &str = "its files are kept: with `memory: false` (`--filesystem-only`), the sandbox starts from them";
    match error.code_or_default() {
        "snapshot_memory_not_restorable" | "memory_snapshots_unavailable" | "memory_not_saved" => {
            error.with_advice(ADVICE)
        }
        _ => error,
    }
}

fn feature_error(error: &FeatureError) -> ApiError {
    match error {
        FeatureError::Unknown(_) | FeatureError::FuseWithMounts => ApiError::bad_request(error.to_string()),
        FeatureError::NotGranted(_) => ApiError::forbidden(error.to_string()),
    }
}

impl From<FindError> for ApiError {
    fn from(error: FindError) -> Self {
        let message = error.to_string();
        match error {
            FindError::Name(error) => error.into(),
            FindError::NotFound(_) | FindError::NoTag { .. } => Self::not_found(message),
            FindError::Forbidden(_) => Self::forbidden(message),
            FindError::IsSnapshot(_) => Self::bad_request(message),
            FindError::Store(error) => error.into(),
        }
    }
}

/// Templates of E2B's cloud that its SDKs have methods for.
const TEMPLATES_OF_E2B: [&str; 2] = ["devcontainer", "mcp-gateway"];

/// For a request to use a template. Without one of E2B's, a part of its API is missing.
pub(super) fn unusable(error: FindError) -> ApiError {
    match error {
        FindError::NotFound(name) if TEMPLATES_OF_E2B.contains(&name.as_str()) => {
            ApiError::unsupported(&format!("E2B's template '{name}'"))
        }
        error => error.into(),
    }
}

impl From<PlanError> for ApiError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Store(error) => error.into(),
            PlanError::Template(FindError::Store(error)) => error.into(),
            PlanError::Template(FindError::NotFound(name)) if TEMPLATES_OF_E2B.contains(&name.as_str()) => {
                unusable(FindError::NotFound(name))
            }
            PlanError::Template(error @ FindError::Forbidden(_)) => error.into(),
            other => Self::bad_request(other.to_string()),
        }
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::TooLarge(_) | UploadError::TeamFull(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
            }
            UploadError::BrokeOff(ref cause) => body_error(cause, Self::bad_request(error.to_string())),
            UploadError::Disk { .. } => Self::unavailable(&error, "the upload cannot be stored at the moment"),
            UploadError::Store(error) => error.into(),
        }
    }
}

impl From<TooManyBuilds> for ApiError {
    fn from(error: TooManyBuilds) -> Self {
        let refused = Self::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).with_code("too_many_builds");
        refused.retry_in(Duration::from_secs(10))
    }
}

impl From<ContextError> for ApiError {
    fn from(error: ContextError) -> Self {
        match error {
            ContextError::Disk { .. } => Self::unavailable(&error, "the context cannot be stored at the moment"),
            ContextError::TooLarge(_) | ContextError::TeamFull(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
            }
            other => Self::bad_request(other.to_string()),
        }
    }
}

/// Whether a directory is where a file should be, or something else is where a directory should be.
pub fn is_in_the_way(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    let is_a_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    is_a_link || matches!(error.kind(), ErrorKind::IsADirectory | ErrorKind::NotADirectory)
}
