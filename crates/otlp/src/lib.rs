//! Traces for an OpenTelemetry collector: spans of requests and of what they caused, sent in batches as OTLP over HTTP
//! with JSON bodies. A collector that is slow or gone costs spans, never a request.
//!
//! It knows of spans only what `tracing` tells: whoever wants to be traced opens spans, and need not know this crate.

mod config;
mod encode;
mod exporter;
mod layer;
mod open;
mod parent;
mod send;
mod span;

pub use config::OtlpConfig;
pub use exporter::OtlpExporter;
pub use layer::OtlpLayer;
pub use open::{OtlpError, otlp};
pub use parent::TraceParent;
