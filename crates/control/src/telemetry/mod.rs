//! What can be counted about this server, its text form for Prometheus, and traces for a collector.

mod counters;
mod database;
mod otlp;
mod prometheus;
mod stock;

pub(crate) use counters::{Counters, Kind};
pub(crate) use database::render_database;
pub(crate) use otlp::TraceParent;
pub use otlp::{OtlpConfig, OtlpError, OtlpExporter, OtlpLayer, otlp};
pub(crate) use prometheus::render;
pub(crate) use stock::render_stock;
