//! Metrics of this server, and their text format for Prometheus.

mod counters;
mod database;
mod pools;
mod prometheus;

pub use counters::Counters;
pub(crate) use counters::Kind;
pub use database::render_database;
pub use pools::render_pools;
pub use prometheus::render;
