//! Starts tracing.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use isopod_outbound::{Target, TargetError};
use tokio::sync::mpsc;

use crate::config::OtlpConfig;
use crate::exporter::OtlpExporter;
use crate::layer::OtlpLayer;
use crate::send::Sender;

/// The most spans that wait to be sent. Further ones are dropped and counted.
const QUEUE: usize = 8192;

/// The configured URL cannot be used for traces.
#[derive(Debug, thiserror::Error)]
#[error("cannot send traces to the configured URL")]
pub struct OtlpError(#[source] TargetError);

/// Returns the layer to add to the subscriber, and the exporter to run for it.
///
/// # Errors
/// If the URL is not valid.
pub fn otlp(config: OtlpConfig) -> Result<(OtlpLayer, OtlpExporter), OtlpError> {
    let target = Target::parse(&config.url).map_err(OtlpError)?;
    let (queue, spans) = mpsc::channel(QUEUE);
    let dropped = Arc::new(AtomicU64::new(0));
    let layer = OtlpLayer::new(queue, Arc::clone(&dropped));
    Ok((layer, OtlpExporter::new(spans, Sender::new(target, config), dropped)))
}
