//! One POST to the collector.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, StatusCode, header};

use super::encode::encode;
use super::{FinishedSpan, OtlpConfig};
use crate::webhooks::{PostError, Target, Trust, request};

/// A collector that asks for more patience is asked again later all the same.
const MOST_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("the collector could not be reached")]
    Unreachable(#[source] PostError),
    #[error("the collector did not answer in time")]
    Timeout,
    #[error("the collector answered {status}")]
    Refused { status: StatusCode, retry_after: Option<Duration> },
}

impl SendError {
    /// Whether the same batch may be taken later. The standard names these answers.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Timeout => true,
            Self::Refused { status, .. } => matches!(status.as_u16(), 429 | 502..=504),
        }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Sender {
    target: Target,
    trust: Trust,
    config: OtlpConfig,
}

impl Sender {
    pub(super) fn new(target: Target, config: OtlpConfig) -> Self {
        Self { target, trust: Trust::new(Vec::new()), config }
    }

    pub(super) fn body(&self, spans: &[FinishedSpan]) -> Bytes {
        encode(&self.config, spans).to_string().into()
    }

    pub(super) async fn send(&self, body: Bytes) -> Result<(), SendError> {
        let sending = async {
            let mut post = Request::post(&self.target.path)
                .header(header::HOST, &self.target.authority)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::USER_AGENT, concat!("isopod/", env!("CARGO_PKG_VERSION")))
                .body(Body::from(body))?;
            post.headers_mut().extend(self.config.headers.clone());
            // The collector's address is the operator's own choice, and is usually an internal one.
            request(&self.target, &self.trust, true, post).await
        };
        let answer = tokio::time::timeout(self.config.timeout, sending).await.map_err(|_| SendError::Timeout)?;
        let head = answer.map_err(SendError::Unreachable)?;
        if head.status.is_success() {
            return Ok(());
        }
        let seconds = head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = seconds.map(|seconds| Duration::from_secs(seconds).min(MOST_PATIENCE));
        Err(SendError::Refused { status: head.status, retry_after })
    }
}
