//! Traces for an OpenTelemetry collector: spans of requests and of what they caused, sent in batches as OTLP over HTTP
//! with JSON bodies. A collector that is slow or gone costs spans, never a request.

mod batch;
mod encode;
mod layer;
mod parent;
mod send;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use tokio::sync::mpsc;

use crate::webhooks::{Target, TargetError};
pub use layer::OtlpLayer;
pub(crate) use parent::TraceParent;
use send::Sender;

/// Spans that wait to be sent. More are dropped, and counted.
const QUEUE: usize = 8192;

/// Where spans go and what they say about their origin.
#[derive(Clone, Debug)]
pub struct OtlpConfig {
    /// The whole URL, such as `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// Sent with every batch, for collectors that want a key.
    pub headers: HeaderMap,
    /// What this server is called.
    pub service_name: String,
    /// More about it, as names and values.
    pub attributes: Vec<(String, String)>,
    /// The longest that one batch may take.
    pub timeout: Duration,
}

/// Why spans cannot be sent there.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent there")]
pub struct OtlpError(#[source] TargetError);

/// Takes spans from the layer and sends them. Runs until it is told to stop, then sends what is left.
#[derive(Debug)]
pub struct OtlpExporter {
    spans: mpsc::Receiver<FinishedSpan>,
    sender: Sender,
    dropped: Arc<AtomicU64>,
}

/// The two ends: a layer for the subscriber, and what must be run for it.
///
/// # Errors
/// If the URL is none.
pub fn otlp(config: OtlpConfig) -> Result<(OtlpLayer, OtlpExporter), OtlpError> {
    let target = Target::parse(&config.url).map_err(OtlpError)?;
    let (queue, spans) = mpsc::channel(QUEUE);
    let dropped = Arc::new(AtomicU64::new(0));
    let layer = OtlpLayer::new(queue, Arc::clone(&dropped));
    Ok((layer, OtlpExporter { spans, sender: Sender::new(target, config), dropped }))
}

impl OtlpExporter {
    fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

/// A span that is over.
#[derive(Debug)]
struct FinishedSpan {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    name: &'static str,
    begin: SystemTime,
    end: SystemTime,
    attributes: Vec<(&'static str, Value)>,
    events: Vec<SpanEvent>,
    failed: bool,
    /// The first span of a request that came from outside.
    is_root: bool,
}

#[derive(Debug)]
struct SpanEvent {
    at: SystemTime,
    message: String,
    attributes: Vec<(&'static str, Value)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Number(i64),
    Flag(bool),
    Real(f64),
}
