//! The errors of a server.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use isopod_guest_client::transport::{TransportError, message_of};
use serde::Deserialize;

/// Why a call to a server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// It does not exist, or belongs to another team.
    #[error("{message}")]
    NotFound {
        /// The server's message.
        message: String,
    },
    /// The key is missing or wrong.
    #[error("{message}")]
    Unauthorized {
        /// The server's message.
        message: String,
    },
    /// Not possible in the current state.
    #[error("{message}")]
    Conflict {
        /// The server's message.
        message: String,
        /// The server's code, such as `idempotency_in_progress`.
        error_code: Option<String>,
        /// When to try again, if that may help.
        retry_after: Option<Duration>,
    },
    /// Too many requests or sandboxes.
    #[error("{message}")]
    RateLimited {
        /// The server's message.
        message: String,
        /// When to try again.
        retry_after: Option<Duration>,
    },
    /// Not possible now: the server or its host is full, starting or unreachable.
    #[error("{message}")]
    Unavailable {
        /// The server's message.
        message: String,
        /// The server's code, such as `sandbox_capacity_unavailable`.
        error_code: Option<String>,
        /// When to try again.
        retry_after: Option<Duration>,
    },
    /// Any other refusal or failure.
    #[error("{code}: {message}")]
    Server {
        /// The HTTP status.
        code: u16,
        /// The server's code.
        error_code: Option<String>,
        /// The server's message.
        message: String,
    },
    /// The server could not be reached, or the connection broke.
    #[error("could not communicate with the server")]
    Transport(#[from] TransportError),
    /// The reply does not follow the API.
    #[error("the server's reply is invalid: {0}")]
    Protocol(String),
}

impl ApiError {
    /// Converts a reply whose status is not 2xx.
    pub(crate) fn from_reply(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let message = match message_of(body) {
            empty if empty.is_empty() => format!("the server answered {status}"),
            message => message,
        };
        let error_code = error_code(body);
        let retry_after = retry_after(headers);
        match status.as_u16() {
            401 => Self::Unauthorized { message },
            404 => Self::NotFound { message },
            409 => Self::Conflict { message, error_code, retry_after },
            429 => Self::RateLimited { message, retry_after },
            502..=504 => Self::Unavailable { message, error_code, retry_after },
            code => Self::Server { code, error_code, message },
        }
    }

    /// Whether the resource does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

fn error_code(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Body {
        error_code: Option<String>,
    }
    serde_json::from_slice::<Body>(body).ok()?.error_code
}

/// Only the form with seconds, because servers of this API send no other.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
