//! Errors between this process and a server, except those that the server reports.

use std::time::Duration;

use super::BoxError;

/// The server could not be reached, or the connection broke.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The connection failed, so nothing was sent.
    #[error("cannot connect to {target}")]
    Connect {
        /// The address or the socket's path.
        target: String,
        /// The cause.
        source: BoxError,
    },
    /// The connection broke before the whole reply had arrived. It is unknown whether the request was executed.
    #[error("the connection to {target} broke")]
    Broken {
        /// The address or the socket's path.
        target: String,
        /// The cause.
        source: BoxError,
    },
    /// The reply ended cleanly but too early.
    #[error("the reply of {target} ended before it was complete")]
    Truncated {
        /// The address or the socket's path.
        target: String,
    },
    /// No reply in time.
    #[error("{target} did not answer within {waited:?}")]
    Timeout {
        /// The address or the socket's path.
        target: String,
        /// How long the client waited.
        waited: Duration,
    },
    /// A stream fell silent, without even a keepalive.
    #[error("{target} sent nothing for {waited:?}")]
    Silent {
        /// The address or the socket's path.
        target: String,
        /// How long the client waited.
        waited: Duration,
    },
    /// The source of the request's body failed.
    #[error("cannot read the data to send to {target}")]
    Source {
        /// The address or the socket's path.
        target: String,
        /// The cause.
        source: BoxError,
    },
    /// The request cannot be written as HTTP, for example because a token has a line break.
    #[error("the request is not valid HTTP")]
    Request(#[source] http::Error),
}

impl TransportError {
    /// Whether it is certain that the server never saw the request.
    pub fn was_never_sent(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Request(_))
    }
}
