//! The errors of a guest, and their conversion from HTTP responses.

use http::StatusCode;
use serde::Deserialize;

use crate::transport::{TransportError, message_of};

/// Why a call to a guest failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The guest refused the request, or failed.
    #[error("{message}")]
    Refused {
        /// The kind of failure.
        code: Code,
        /// The guest's message.
        message: String,
    },
    /// The sandbox does not exist or is not running.
    #[error("the sandbox is not running: {message}")]
    SandboxNotRunning {
        /// The edge's message.
        message: String,
    },
    /// The sandbox is running, but nothing in it listens on the port.
    #[error("nothing answers inside the sandbox: {message}")]
    PortClosed {
        /// The edge's message.
        message: String,
    },
    /// The guest could not be reached, or the connection broke.
    #[error("could not communicate with the guest")]
    Transport(#[from] TransportError),
    /// The reply does not follow the protocol.
    #[error("the guest's reply is invalid: {0}")]
    Protocol(String),
}

impl GuestError {
    /// Returns the code of a refusal.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the process, file or method does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// Whether a time limit expired: of the process, the request or the connection.
    pub fn is_timeout(&self) -> bool {
        let of_transport =
            matches!(self, Self::Transport(TransportError::Timeout { .. } | TransportError::Silent { .. }));
        of_transport || self.code() == Some(Code::DeadlineExceeded)
    }

    /// Like [`Self::from_reply`], for RPC. There, a missing page means a missing method. If it were treated as a
    /// missing process, a signal that was not delivered would look harmless.
    pub(crate) fn from_rpc_reply(status: StatusCode, body: &[u8]) -> Self {
        match Self::from_reply(status, body) {
            Self::Refused { code: Code::NotFound, message } if serde_json::from_slice::<Refusal>(body).is_err() => {
                Self::Refused { code: Code::Unimplemented, message }
            }
            other => other,
        }
    }

    /// Converts a reply whose status is not 2xx: from the guest's RPC, its plain HTTP, or an edge in between.
    pub(crate) fn from_reply(status: StatusCode, body: &[u8]) -> Self {
        if let Ok(refusal) = serde_json::from_slice::<Refusal>(body) {
            return refusal.into();
        }
        let message = match message_of(body) {
            empty if empty.is_empty() => format!("the server answered {status}"),
            message => message,
        };
        if status == StatusCode::BAD_GATEWAY && message.contains("was not found") {
            return Self::SandboxNotRunning { message };
        }
        if status == StatusCode::BAD_GATEWAY && message.contains("port is not open") {
            return Self::PortClosed { message };
        }
        Self::Refused { code: Code::from_status(status), message }
    }
}

/// A refusal in the format of the RPC protocol.
#[derive(Debug, Deserialize)]
pub(crate) struct Refusal {
    code: Code,
    #[serde(default)]
    message: String,
}

impl From<Refusal> for GuestError {
    fn from(Refusal { code, message }: Refusal) -> Self {
        let message = if message.is_empty() { code.words().to_owned() } else { message };
        Self::Refused { code, message }
    }
}

/// The error codes of the RPC protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Code {
    /// The caller cancelled the request.
    Canceled,
    /// An unknown error.
    Unknown,
    /// The request is invalid, whatever the state of the sandbox.
    InvalidArgument,
    /// A time limit expired.
    DeadlineExceeded,
    /// It does not exist.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// The user lacks permission.
    PermissionDenied,
    /// A limit was reached: of requests, bytes or processes.
    ResourceExhausted,
    /// Not possible in the current state.
    FailedPrecondition,
    /// A concurrent operation interfered.
    Aborted,
    /// Past the end.
    OutOfRange,
    /// The guest does not support this.
    Unimplemented,
    /// The guest failed.
    Internal,
    /// Not possible now; try again later.
    Unavailable,
    /// Data was lost permanently.
    DataLoss,
    /// The token or the user name is missing or wrong.
    Unauthenticated,
}

impl Code {
    fn from_status(status: StatusCode) -> Self {
        match status.as_u16() {
            400 | 406 | 413 | 415 => Self::InvalidArgument,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::NotFound,
            408 => Self::DeadlineExceeded,
            409 => Self::AlreadyExists,
            429 | 507 => Self::ResourceExhausted,
            499 => Self::Canceled,
            500 => Self::Internal,
            405 | 501 => Self::Unimplemented,
            502..=504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Canceled => "canceled",
            Self::Unknown => "unknown failure",
            Self::InvalidArgument => "invalid argument",
            Self::DeadlineExceeded => "the time limit expired",
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::PermissionDenied => "permission denied",
            Self::ResourceExhausted => "resource exhausted",
            Self::FailedPrecondition => "not possible in this state",
            Self::Aborted => "aborted",
            Self::OutOfRange => "out of range",
            Self::Unimplemented => "not implemented",
            Self::Internal => "internal failure",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data loss",
            Self::Unauthenticated => "unauthenticated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_read_in_both_dialects() {
        let rpc = GuestError::from_reply(StatusCode::NOT_FOUND, br#"{"code":"not_found","message":"no pid 7"}"#);
        assert!(rpc.is_not_found());
        assert_eq!(rpc.to_string(), "no pid 7");
        let plain = GuestError::from_reply(StatusCode::UNAUTHORIZED, br#"{"code":401,"message":"who are you"}"#);
        assert_eq!((plain.code(), plain.to_string()), (Some(Code::Unauthenticated), "who are you".to_owned()));
        let page = GuestError::from_reply(StatusCode::SERVICE_UNAVAILABLE, b"");
        assert_eq!(page.code(), Some(Code::Unavailable));
    }

    #[test]
    fn a_missing_page_is_not_a_missing_process() {
        let of_rpc = |body: &[u8]| GuestError::from_rpc_reply(StatusCode::NOT_FOUND, body).code();
        assert_eq!(of_rpc(br#"{"code":404,"message":"no such page"}"#), Some(Code::Unimplemented));
        assert_eq!(of_rpc(b"<html>"), Some(Code::Unimplemented));
        assert_eq!(of_rpc(br#"{"code":"not_found","message":"no pid 7"}"#), Some(Code::NotFound));
    }

    #[test]
    fn the_edge_tells_a_missing_sandbox_from_a_closed_port() {
        let gone = br#"{"sandboxId":"i1","message":"The sandbox was not found","code":502}"#;
        assert!(matches!(GuestError::from_reply(StatusCode::BAD_GATEWAY, gone), GuestError::SandboxNotRunning { .. }));
        let closed =
            br#"{"sandboxId":"i1","message":"The sandbox is running but port is not open","port":1,"code":502}"#;
        assert!(matches!(GuestError::from_reply(StatusCode::BAD_GATEWAY, closed), GuestError::PortClosed { .. }));
    }
}
