//! What can go wrong between this process and a server, apart from what the server says.

use std::time::Duration;

use super::BoxError;

/// The server could not be reached, or the way to it broke.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No connection came about: nothing was sent.
    #[error("cannot connect to {target}")]
    Connect {
        /// The address or the socket's path.
        target: String,
        /// Why not.
        source: BoxError,
    },
    /// The connection broke before the whole reply had arrived. Whether the request was acted on is unknown.
    #[error("the connection to {target} broke")]
    Broken {
        /// The address or the socket's path.
        target: String,
        /// How.
        source: BoxError,
    },
    /// The reply ended cleanly but too early.
    #[error("the reply of {target} ended before it was complete")]
    Truncated {
        /// The address or the socket's path.
        target: String,
    },
    /// No answer in time.
    #[error("{target} did not answer within {waited:?}")]
    Timeout {
        /// The address or the socket's path.
        target: String,
        /// How long was waited.
        waited: Duration,
    },
    /// A stream fell silent, not even a sign of life came.
    #[error("nothing was heard from {target} for {waited:?}")]
    Silent {
        /// The address or the socket's path.
        target: String,
        /// How long was waited.
        waited: Duration,
    },
    /// What the caller wanted to send could not be read.
    #[error("cannot read what was to be sent to {target}")]
    Source {
        /// The address or the socket's path.
        target: String,
        /// Why not.
        source: BoxError,
    },
    /// The request cannot be written as HTTP, for example because a token has a line break.
    #[error("the request cannot be written as HTTP")]
    Request(#[source] http::Error),
}

impl TransportError {
    /// Whether it is certain that the server never saw the request.
    pub fn was_never_sent(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Request(_))
    }
}
