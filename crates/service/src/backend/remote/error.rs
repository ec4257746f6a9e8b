//! Maps errors of a server and of the connection to it to backend errors.

use std::time::Duration;

use isopod_client::{ApiError, TransportError};

use super::super::{BackendError, Effect, Place};

const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) fn of_api(error: ApiError) -> BackendError {
    match error {
        ApiError::NotFound { message } => BackendError::NotFound { message },
        ApiError::Unauthorized { message } | ApiError::Server { code: 403, message, .. } => {
            BackendError::InvalidKey { message }
        }
        ApiError::Conflict { message, error_code, retry_after } => {
            conflict(message, error_code.as_deref(), retry_after)
        }
        ApiError::RateLimited { message, retry_after } => BackendError::Quota { message, retry_after },
        ApiError::Unavailable { message, error_code, retry_after } => BackendError::Unavailable {
            message,
            retry_after,
            // A gateway may have forwarded the request before it gave up.
            effect: Effect::Unknown,
            // A server that names its reason is alive: it is full, or a template is being built.
            place: if error_code.is_some() { Place::Sandbox } else { Place::Backend },
            source: None,
        },
        ApiError::Server { code: 400..=499 | 501, message, .. } => BackendError::Invalid { message },
        ApiError::Transport(error) => of_transport(error),
        error => BackendError::Internal {
            message: "the remote server failed".to_owned(),
            place: Place::Backend,
            source: Some(Box::new(error)),
        },
    }
}

/// A sandbox that is changing its state. The same call may succeed in a moment.
pub(super) fn busy(message: String) -> BackendError {
    later(message, DEFAULT_RETRY_AFTER, Effect::None)
}

fn conflict(message: String, code: Option<&str>, retry_after: Option<Duration>) -> BackendError {
    match (code, retry_after) {
        // Our first attempt is still running. The next one finds its result.
        (Some("idempotency_in_progress"), wait) => later(message, wait.unwrap_or(DEFAULT_RETRY_AFTER), Effect::Unknown),
        (_, Some(wait)) => later(message, wait, Effect::None),
        (_, None) => BackendError::Conflict { message },
    }
}

fn later(message: String, wait: Duration, effect: Effect) -> BackendError {
    BackendError::Unavailable { message, retry_after: Some(wait), effect, place: Place::Sandbox, source: None }
}

fn of_transport(error: TransportError) -> BackendError {
    match error {
        TransportError::Timeout { target, waited } | TransportError::Silent { target, waited } => {
            BackendError::Timeout { what: format!("a reply from {target}"), limit: waited, place: Place::Backend }
        }
        TransportError::Request(_) => BackendError::invalid(isopod_wire::error_chain(&error)),
        error => BackendError::Unavailable {
            message: "the remote server cannot be reached".to_owned(),
            retry_after: None,
            effect: if error.was_never_sent() { Effect::None } else { Effect::Unknown },
            place: Place::Backend,
            source: Some(Box::new(error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ErrorKind;
    use super::*;

    fn server(code: u16) -> BackendError {
        of_api(ApiError::Server { code, error_code: None, message: "no".into() })
    }

    #[test]
    fn replies_of_servers_keep_their_kind() {
        assert_eq!(server(400).kind(), ErrorKind::Invalid);
        assert_eq!(server(403).kind(), ErrorKind::InvalidKey);
        assert_eq!(server(500).kind(), ErrorKind::Internal);
        assert!(server(500).blames_backend() && !server(500).is_transient());
        let refused = ApiError::RateLimited { message: "too many".into(), retry_after: None };
        assert!(!of_api(refused).is_transient());
    }

    #[test]
    fn a_create_that_is_under_way_is_asked_for_again() {
        let code = Some("idempotency_in_progress".to_owned());
        let under_way = of_api(ApiError::Conflict { message: "wait".into(), error_code: code, retry_after: None });
        assert!(under_way.is_transient() && under_way.effect() == Effect::Unknown && !under_way.blames_backend());
        let stays = of_api(ApiError::Conflict { message: "no".into(), error_code: None, retry_after: None });
        assert_eq!(stays.kind(), ErrorKind::Conflict);
    }

    #[test]
    fn a_full_server_is_no_reason_to_stop_asking_it() {
        let full = |error_code| of_api(ApiError::Unavailable { message: "full".into(), error_code, retry_after: None });
        assert!(!full(Some("sandbox_capacity_unavailable".to_owned())).blames_backend());
        assert!(full(None).blames_backend());
    }
}
