//! What can be counted about this server, and its text form for Prometheus.

mod counters;
mod database;
mod prometheus;
mod stock;

pub use counters::Counters;
pub(crate) use counters::Kind;
pub use database::render_database;
pub use prometheus::render;
pub use stock::render_stock;
