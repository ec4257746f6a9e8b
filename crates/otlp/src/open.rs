//! Begins to trace.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use isopod_outbound::{Target, TargetError};
use tokio::sync::mpsc;

use crate::config::OtlpConfig;
use crate::exporter::OtlpExporter;
use crate::layer::OtlpLayer;
use crate::send::Sender;

/// Spans that wait to be sent. More are dropped, and counted.
const QUEUE: usize = 8192;

/// Why spans cannot be sent there.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent there")]
pub struct OtlpError(#[source] TargetError);

/// The two ends: a layer for the subscriber, and what must be run for it.
///
/// # Errors
/// If the URL is none.
pub fn otlp(config: OtlpConfig) -> Result<(OtlpLayer, OtlpExporter), OtlpError> {
    let target = Target::parse(&config.url).map_err(OtlpError)?;
    let (queue, spans) = mpsc::channel(QUEUE);
    let dropped = Arc::new(AtomicU64::new(0));
    let layer = OtlpLayer::new(queue, Arc::clone(&dropped));
    Ok((layer, OtlpExporter::new(spans, Sender::new(target, config), dropped)))
}
