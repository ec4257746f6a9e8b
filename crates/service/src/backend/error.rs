//! Why a backend did not do something: kinds that the service can act on, and whether it is worth trying again.

use std::time::Duration;

/// What went wrong below, for the log.
pub(super) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// There is no such sandbox, template, file or user.
    #[error("{message}")]
    NotFound {
        /// In words.
        message: String,
    },
    /// Too many sandboxes or requests.
    #[error("{message}")]
    Quota {
        /// What was exceeded.
        message: String,
        /// When to try again, where that was said.
        retry_after: Option<Duration>,
    },
    /// The backend does not accept our key.
    #[error("the backend does not accept its key: {message}")]
    InvalidKey {
        /// The backend's words.
        message: String,
    },
    /// It cannot be done in the sandbox's present state.
    #[error("{message}")]
    Conflict {
        /// In words.
        message: String,
    },
    /// The request makes no sense to this backend, whenever it is sent.
    #[error("{message}")]
    Invalid {
        /// In words.
        message: String,
    },
    /// No answer in time.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// Who did not answer.
        place: Place,
    },
    /// Not now: full, starting, or out of reach.
    #[error("{message}")]
    Unavailable {
        /// In words.
        message: String,
        /// When to try again, where that was said.
        retry_after: Option<Duration>,
        /// Whether something may have been done nevertheless.
        effect: Effect,
        /// Who is not there.
        place: Place,
        /// What went wrong below.
        source: Option<Source>,
    },
    /// The backend failed so often that it is not asked for a while.
    #[error("the {backend} backend is down and is not asked again for {retry_after:?}")]
    BreakerOpen {
        /// Which.
        backend: &'static str,
        /// When it will be.
        retry_after: Duration,
    },
    /// The backend failed, or says what makes no sense.
    #[error("{message}")]
    Internal {
        /// In words.
        message: String,
        /// Who failed.
        place: Place,
        /// What went wrong below.
        source: Option<Source>,
    },
}

/// Whether a call that failed may have been acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Certainly not: it was refused or never sent.
    None,
    /// Nobody knows.
    Unknown,
}

/// Where the trouble is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The backend as a whole: it counts for the breaker.
    Backend,
    /// Only this sandbox, which may do as it likes, or one that there is no room for now.
    Sandbox,
}

/// The kinds, for metrics and for answers.
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
    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::NotFound { message: message.into() }
    }

    /// Not in the present state.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::Conflict { message: message.into() }
    }

    /// It makes no sense.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    /// The backend failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::Internal { message: message.into(), place: Place::Backend, source: None }
    }

    /// Its kind.
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

    /// Whether the same call may succeed a little later. A quota counts only where the backend said when.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Unavailable { .. } | Self::BreakerOpen { .. } => true,
            Self::Quota { retry_after, .. } => retry_after.is_some(),
            _ => false,
        }
    }

    /// When to try again, where that was said.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Quota { retry_after, .. } | Self::Unavailable { retry_after, .. } => *retry_after,
            Self::BreakerOpen { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// Whether something may have been done although the call failed.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Unavailable { effect, .. } => *effect,
            Self::Timeout { .. } | Self::Internal { .. } => Effect::Unknown,
            _ => Effect::None,
        }
    }

    /// Whether the backend as a whole is to blame. Refusals show that it lives.
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
