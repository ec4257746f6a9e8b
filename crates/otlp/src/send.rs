//! Sends one POST request to the collector.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use isopod_outbound::{RequestError, Target, Trust, request};

use crate::config::OtlpConfig;
use crate::encode::encode;
use crate::span::FinishedSpan;

/// The longest pause before a retry, even if the collector asks for a longer one.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("the collector could not be reached")]
    Unreachable(#[source] RequestError),
    #[error("the collector did not answer in time")]
    Timeout,
    #[error("the collector answered {status}")]
    Refused { status: StatusCode, retry_after: Option<Duration> },
}

impl SendError {
    /// Whether the collector may accept the same batch later. The standard lists these statuses.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Timeout => true,
            Self::Refused { status, .. } => matches!(status.as_u16(), 429 | 502..=504),
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Sender {
    target: Target,
    trust: Trust,
    config: OtlpConfig,
}

impl Sender {
    pub(crate) fn new(target: Target, config: OtlpConfig) -> Self {
        Self { target, trust: Trust::new(Vec::new()), config }
    }

    pub(crate) fn body(&self, spans: &[FinishedSpan]) -> Bytes {
        encode(&self.config, spans).to_string().into()
    }

    pub(crate) async fn send(&self, body: Bytes) -> Result<(), SendError> {
        let sending = async {
            let mut post = Request::post(&self.target.path)
                .header(header::HOST, &self.target.authority)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::USER_AGENT, concat!("isopod/", env!("CARGO_PKG_VERSION")))
                .body(Full::new(body))?;
            post.headers_mut().extend(self.config.headers.clone());
            // The operator chose the collector's address, and it is usually an internal one.
            request(&self.target, &self.trust, &isopod_outbound::Policy::open(), post).await
        };
        let answer = tokio::time::timeout(self.config.timeout, sending).await.map_err(|_| SendError::Timeout)?;
        let head = answer.map_err(SendError::Unreachable)?;
        if head.status.is_success() {
            return Ok(());
        }
        let seconds = head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_PAUSE));
        Err(SendError::Refused { status: head.status, retry_after })
    }
}
