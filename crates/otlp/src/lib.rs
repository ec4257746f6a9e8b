//! Traces for an OpenTelemetry collector. Spans of requests and of the work they cause are sent in batches as OTLP over
//! HTTP with JSON bodies. If the collector is slow or down, spans are lost, but requests are not affected.
//!
//! The crate knows only what `tracing` reports about spans. Code that wants to be traced opens spans and does not need
//! to know this crate.

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
