//! Errors of the service. Each has a stable code.

use isopod_store::StoreError;
use isopod_store::service::{QuotaExceeded, Status};

use super::backend::{BackendError, ErrorKind};
use super::failed_step::{FailedStep, Step};
use super::policy::PolicyRefusal;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("{what} {id:?} doesn't exist or you don't have access to it")]
    NotFound { what: &'static str, id: String },
    #[error("it belongs to another agent")]
    NotOwner,
    #[error("your key is read-only")]
    ScopeForbids,
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Policy(#[from] PolicyRefusal),
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    #[error("the sandbox is {}", .0.text())]
    NotRunning(Status),
    #[error("{message}")]
    Conflict { code: &'static str, message: String },
    /// The backend refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("git failed: {0}")]
    Git(String),
    /// A step of a fragment failed because of what the fragment says.
    #[error(transparent)]
    StepFailed(Box<FailedStep>),
    /// Something failed during a step of a fragment.
    #[error("{error}")]
    InStep { step: Step, error: Box<Self> },
    /// Too many requests for short URLs that don't exist came from one address.
    #[error("too many unknown links were opened from this address; wait a minute")]
    TooManyGuesses(std::time::Duration),
    /// As many short URLs were created from the caller's address within a day as are allowed.
    #[error("{limit} short URLs were created from this address within 24 hours, which is the limit")]
    TooManyShortUrls { limit: u32, wait: std::time::Duration },
    /// It existed, and no longer does.
    #[error("{0}")]
    Gone(&'static str),
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// A task of ours was aborted.
    #[error("the call was aborted")]
    Aborted,
}

impl ServiceError {
    pub(crate) fn not_found(what: &'static str, id: &str) -> Self {
        Self::NotFound { what, id: id.chars().take(64).collect() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::Conflict { code, message: message.into() }
    }

    /// Its stable code.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::NotFound { what: "sandbox", .. } => "sandbox_not_found",
            Self::NotFound { what: "task", .. } => "task_not_found",
            Self::NotFound { what: "agent", .. } => "agent_not_found",
            Self::NotFound { .. } => "not_found",
            Self::NotOwner => "not_owner",
            Self::ScopeForbids => "scope_forbids",
            Self::Invalid(_) => "invalid_request",
            Self::Policy(_) => "command_refused",
            Self::Quota(_) | Self::TooManyShortUrls { .. } => "quota_exceeded",
            Self::NotRunning(_) => "sandbox_not_running",
            Self::Conflict { code, .. } => code,
            Self::Backend(error) => backend_code(error.kind()),
            Self::Git(_) => "git_failed",
            Self::StepFailed(_) => "step_failed",
            Self::InStep { error, .. } => error.code(),
            Self::TooManyGuesses(_) => "too_many_requests",
            Self::Gone(_) => "gone",
            Self::Store(StoreError::Elsewhere { .. }) => "on_another_server",
            Self::Store(StoreError::Unreachable { .. }) => "server_unreachable",
            Self::Store(_) => "store_unavailable",
            Self::Aborted => "internal_server_error",
        }
    }
}

fn backend_code(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "not_found",
        ErrorKind::Quota => "backend_quota_exceeded",
        ErrorKind::InvalidKey => "backend_invalid_key",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Invalid => "invalid_request",
        ErrorKind::Timeout => "backend_timeout",
        ErrorKind::Unavailable => "backend_unavailable",
        ErrorKind::BreakerOpen => "backend_down",
        ErrorKind::Internal => "backend_failed",
    }
}
