//! What a guest can answer instead of a result, and how its refusals are read from HTTP.

use http::StatusCode;
use serde::Deserialize;

use crate::transport::{TransportError, message_of};

/// Why a call to a guest failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The guest understood and said no, or failed.
    #[error("{message}")]
    Refused {
        /// The kind of failure.
        code: Code,
        /// The guest's words.
        message: String,
    },
    /// There is no such sandbox, or it does not run now.
    #[error("the sandbox is not running: {message}")]
    SandboxNotRunning {
        /// The edge's words.
        message: String,
    },
    /// The sandbox runs, but nothing in it listens on the port.
    #[error("nothing answers inside the sandbox: {message}")]
    PortClosed {
        /// The edge's words.
        message: String,
    },
    /// The guest could not be reached, or the connection broke.
    #[error("cannot speak with the guest")]
    Transport(#[from] TransportError),
    /// The reply is not what the protocol says.
    #[error("the guest's reply makes no sense: {0}")]
    Protocol(String),
}

impl GuestError {
    /// The kind of refusal, if it is one.
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

    /// Whether a time limit ran out: of the process, the request or the connection.
    pub fn is_timeout(&self) -> bool {
        let of_transport =
            matches!(self, Self::Transport(TransportError::Timeout { .. } | TransportError::Silent { .. }));
        of_transport || self.code() == Some(Code::DeadlineExceeded)
    }

    /// Like [`Self::from_reply`], for RPC: there a page that does not exist is a method that does not exist. Taken as a
    /// missing process it would let a signal that nobody received look harmless.
    pub(crate) fn from_rpc_reply(status: StatusCode, body: &[u8]) -> Self {
        match Self::from_reply(status, body) {
            Self::Refused { code: Code::NotFound, message } if serde_json::from_slice::<Refusal>(body).is_err() => {
                Self::Refused { code: Code::Unimplemented, message }
            }
            other => other,
        }
    }

    /// A reply whose status is not 2xx: from the guest's RPC, its plain HTTP, or an edge in between.
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

/// A refusal in the words of the RPC protocol.
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

/// The kinds of failure that the RPC protocol knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Code {
    /// The caller gave up.
    Canceled,
    /// Nobody knows.
    Unknown,
    /// The request makes no sense, whatever the state of the sandbox.
    InvalidArgument,
    /// A time limit ran out.
    DeadlineExceeded,
    /// It does not exist.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// Not with these rights.
    PermissionDenied,
    /// Too much of something: requests, bytes, processes.
    ResourceExhausted,
    /// Not in this state.
    FailedPrecondition,
    /// Somebody else was faster.
    Aborted,
    /// Past the end.
    OutOfRange,
    /// The guest cannot do this.
    Unimplemented,
    /// The guest failed.
    Internal,
    /// Not now; perhaps later.
    Unavailable,
    /// Something was lost for good.
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
            Self::DeadlineExceeded => "the time limit ran out",
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
