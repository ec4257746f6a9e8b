//! Maps errors of a guest and of the connection to it to backend errors.

use isopod_guest_client::guest::Code;
use isopod_guest_client::{GuestError, TransportError};

use super::super::{BackendError, Effect, Place};

/// How far a call had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Phase {
    /// No reply has arrived yet. If the connection breaks here, it may be broken for everyone.
    Opening,
    /// It was in progress. A sandbox that ends also breaks it.
    Streaming,
}

pub(in super::super) fn of_guest(error: GuestError, phase: Phase) -> BackendError {
    match error {
        GuestError::Refused { code, message } => refused(code, message, phase),
        GuestError::Transport(error) => of_transport(error, phase),
        GuestError::SandboxNotRunning { .. } | GuestError::PortClosed { .. } => {
            unavailable(error, Effect::None, Place::Sandbox)
        }
        // A sandbox may send anything. That is not the backend's fault.
        error => {
            let message = "the guest in the sandbox sent an invalid reply".to_owned();
            BackendError::Internal { message, place: Place::Sandbox, source: Some(error.into()) }
        }
    }
}

fn refused(code: Code, message: String, phase: Phase) -> BackendError {
    match code {
        Code::NotFound => BackendError::NotFound { message },
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => BackendError::Conflict { message },
        Code::ResourceExhausted => BackendError::Quota { message, retry_after: None },
        Code::DeadlineExceeded => BackendError::Unavailable {
            message,
            retry_after: None,
            effect: Effect::Unknown,
            place: Place::Sandbox,
            source: None,
        },
        Code::Unavailable => BackendError::Unavailable {
            message,
            retry_after: None,
            effect: Effect::Unknown,
            place: if phase == Phase::Opening { Place::Backend } else { Place::Sandbox },
            source: None,
        },
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => BackendError::Invalid { message },
        _ => BackendError::Internal { message, place: Place::Sandbox, source: None },
    }
}

fn of_transport(error: TransportError, phase: Phase) -> BackendError {
    match error {
        TransportError::Timeout { target, waited } | TransportError::Silent { target, waited } => {
            BackendError::Timeout { what: format!("a reply from {target}"), limit: waited, place: Place::Sandbox }
        }
        TransportError::Source { .. } | TransportError::Request(_) => {
            BackendError::invalid(isopod_wire::error_chain(&error))
        }
        TransportError::Connect { .. } => unavailable(error, Effect::None, Place::Backend),
        error if phase == Phase::Opening => unavailable(error, Effect::Unknown, Place::Backend),
        error => unavailable(error, Effect::Unknown, Place::Sandbox),
    }
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static, effect: Effect, place: Place) -> BackendError {
    let message = "the sandbox cannot be reached".to_owned();
    BackendError::Unavailable { message, retry_after: None, effect, place, source: Some(Box::new(error)) }
}

#[cfg(test)]
mod tests {
    use super::super::super::ErrorKind;
    use super::*;

    fn broken() -> GuestError {
        TransportError::Truncated { target: "x".into() }.into()
    }

    #[test]
    fn a_sandbox_that_breaks_off_does_not_blame_the_backend() {
        assert!(!of_guest(broken(), Phase::Streaming).blames_backend());
        assert!(of_guest(broken(), Phase::Opening).blames_backend());
        assert!(!of_guest(GuestError::Protocol("rubbish".into()), Phase::Opening).blames_backend());
    }

    #[test]
    fn refusals_of_guests_keep_their_kind() {
        let kind = |code| of_guest(GuestError::Refused { code, message: "no".into() }, Phase::Opening).kind();
        assert_eq!(kind(Code::NotFound), ErrorKind::NotFound);
        assert_eq!(kind(Code::InvalidArgument), ErrorKind::Invalid);
        assert_eq!(kind(Code::ResourceExhausted), ErrorKind::Quota);
        assert_eq!(kind(Code::Unavailable), ErrorKind::Unavailable);
    }
}
