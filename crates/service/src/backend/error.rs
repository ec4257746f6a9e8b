//! Errors of a backend: kinds that the service can act on, and whether a retry makes sense.

use std::time::Duration;

/// The underlying error, for the log.
pub(super) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// There is no such sandbox, template, file or user.
    #[error("{message}")]
    NotFound {
        /// The message.
        message: String,
    },
    /// Too many sandboxes or requests.
    #[error("{message}")]
    Quota {
        /// What was exceeded.
        message: String,
        /// When to retry, if the backend said so.
        retry_after: Option<Duration>,
    },
    /// The backend does not accept our key.
    #[error("the backend does not accept its key: {message}")]
    InvalidKey {
        /// The backend's message.
        message: String,
    },
    /// The sandbox's current state does not allow it.
    #[error("{message}")]
    Conflict {
        /// The message.
        message: String,
    },
    /// The request is never valid for this backend.
    #[error("{message}")]
    Invalid {
        /// The message.
        message: String,
    },
    /// No reply in time.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// What did not reply.
        place: Place,
    },
    /// Temporarily not possible: full, starting, or unreachable.
    #[error("{message}")]
    Unavailable {
        /// The message.
        message: String,
        /// When to retry, if the backend said so.
        retry_after: Option<Duration>,
        /// Whether the call may have taken effect nevertheless.
        effect: Effect,
        /// What is unavailable.
        place: Place,
        /// The underlying error.
        source: Option<Source>,
    },
    /// The backend failed so often that it is not used for a while.
    #[error("the {backend} backend is down and will not be tried for {retry_after:?}")]
    BreakerOpen {
        /// The backend.
        backend: &'static str,
        /// When it will be used again.
        retry_after: Duration,
    },
    /// The backend failed or sent an invalid reply.
    #[error("{message}")]
    Internal {
        /// The message.
        message: String,
        /// What failed.
        place: Place,
        /// The underlying error.
        source: Option<Source>,
    },
}

/// Whether a failed call may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Certainly not: it was refused or never sent.
    None,
    /// Unknown.
    Unknown,
}

/// Where the problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The backend as a whole. This counts for the breaker.
    Backend,
    /// Only this sandbox, which may behave in any way, or a sandbox that there is no room for now.
    Sandbox,
}

/// The kinds of errors, for metrics and for replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// [`BackendError::NotFound`]
    NotFound,
    /// [`BackendError::Quota`]
    Quota,
    /// [`BackendError::InvalidKey`]
    InvalidKey,
    /// [`BackendError::Conflict`]
    Conflict,
    /// [`BackendError::Invalid`]
    Invalid,
    /// [`BackendError::Timeout`]
    Timeout,
    /// [`BackendError::Unavailable`]
    Unavailable,
    /// [`BackendError::BreakerOpen`]
    BreakerOpen,
    /// [`BackendError::Internal`]
    Internal,
}

impl ErrorKind {
    /// Its stable name.
    pub fn text(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Quota => "quota_exceeded",
            Self::InvalidKey => "invalid_key",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::BreakerOpen => "breaker_open",
            Self::Internal => "internal",
        }
    }
}

impl BackendError {
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::NotFound { message: message.into() }
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self::Conflict { message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::Internal { message: message.into(), place: Place::Backend, source: None }
    }

    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Quota { .. } => ErrorKind::Quota,
            Self::InvalidKey { .. } => ErrorKind::InvalidKey,
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Unavailable { .. } => ErrorKind::Unavailable,
            Self::BreakerOpen { .. } => ErrorKind::BreakerOpen,
            Self::Internal { .. } => ErrorKind::Internal,
        }
    }

    /// Whether the same call may succeed a little later. A quota counts only if the backend said when.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Unavailable { .. } | Self::BreakerOpen { .. } => true,
            Self::Quota { retry_after, .. } => retry_after.is_some(),
            _ => false,
        }
    }

    /// When to retry, if the backend said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Quota { retry_after, .. } | Self::Unavailable { retry_after, .. } => *retry_after,
            Self::BreakerOpen { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// Whether the call may have taken effect although it failed.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Unavailable { effect, .. } => *effect,
            Self::Timeout { .. } | Self::Internal { .. } => Effect::Unknown,
            _ => Effect::None,
        }
    }

    /// Whether the backend as a whole is at fault. A refusal shows that it is alive.
    pub fn blames_backend(&self) -> bool {
        match self {
            Self::Timeout { place, .. } | Self::Unavailable { place, .. } | Self::Internal { place, .. } => {
                *place == Place::Backend
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_transient() {
        let quota = |retry_after| BackendError::Quota { message: String::new(), retry_after };
        assert!(!quota(None).is_transient());
        assert!(quota(Some(Duration::from_secs(1))).is_transient());
        let stays = [
            BackendError::not_found("x"),
            BackendError::InvalidKey { message: String::new() },
            BackendError::conflict("x"),
            BackendError::invalid("x"),
            BackendError::internal("x"),
        ];
        assert!(stays.iter().all(|error| !error.is_transient()));
        let timeout = BackendError::Timeout { what: "x".into(), limit: Duration::ZERO, place: Place::Sandbox };
        assert!(timeout.is_transient() && !timeout.blames_backend());
        assert_eq!(timeout.effect(), Effect::Unknown);
    }
}
