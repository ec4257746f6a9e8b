//! Reads the output of processes from a sandbox's guest. The response comes from inside a sandbox, so its size is
//! limited, and an invalid one is only an error.

use axum::body::Body;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use isopod_wire::node::{Incarnation, NodeApi, Target};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::CONTROL_HEADER;
use super::connect::{ConnectError, connect};

/// Much more than a guest puts into one response, even with every byte escaped.
const MAX_BYTES: usize = 4 << 20;
/// Each block becomes a row. A guest puts at most 256 KiB of them into a response, including overhead.
const MAX_BLOCKS: usize = 16 << 10;

/// The response of a guest.
#[derive(Debug, Deserialize)]
pub(crate) struct OutputPage {
    /// The position to request next.
    pub(crate) next: u64,
    /// Whether there is more already.
    pub(crate) more: bool,
    /// Bytes that were printed but dropped.
    pub(crate) skipped: u64,
    pub(crate) blocks: Vec<OutputBlock>,
}

/// Lines that one process printed at one moment.
#[derive(Debug, Deserialize)]
pub(crate) struct OutputBlock {
    /// Milliseconds since 1970.
    pub(crate) at: i64,
    pub(crate) pid: u32,
    pub(crate) stream: Channel,
    pub(crate) text: String,
}

/// The output stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Channel {
    Stdout,
    Stderr,
    Pty,
}

/// Why the output could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the guest closed the connection")]
    Request(#[from] hyper::Error),
    #[error("the guest answered with {0}")]
    Status(StatusCode),
    #[error("could not read the guest's whole response")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the guest's response is invalid")]
    Invalid(#[from] serde_json::Error),
    #[error("the guest's response has {0} blocks of output; the limit is {MAX_BLOCKS}")]
    TooMany(usize),
}

/// Asks the guest. The caller sets the timeout.
pub(crate) async fn read_output(
    node: &dyn NodeApi,
    incarnation: &Incarnation,
    after: u64,
) -> Result<OutputPage, OutputError> {
    let gate = CancellationToken::new();
    let _closed_at_the_end = gate.clone().drop_guard();
    let mut sender = connect(node, incarnation, Target::Guest, &gate).await?;
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = format!("/logs?after={after}").parse().unwrap_or_else(|_| Uri::from_static("/logs"));
    request.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
    request.headers_mut().insert(CONTROL_HEADER, HeaderValue::from_static("1"));
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::OK {
        return Err(OutputError::Status(response.status()));
    }
    let body = Limited::new(response.into_body(), MAX_BYTES).collect().await.map_err(OutputError::Body)?;
    OutputPage::parse(&body.to_bytes())
}

impl OutputPage {
    pub(crate) fn parse(answer: &[u8]) -> Result<Self, OutputError> {
        let page: Self = serde_json::from_slice(answer)?;
        match page.blocks.len() {
            ..=MAX_BLOCKS => Ok(page),
            many => Err(OutputError::TooMany(many)),
        }
    }
}
