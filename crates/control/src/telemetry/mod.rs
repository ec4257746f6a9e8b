//! What can be counted about this server, and its text form for Prometheus.

mod counters;
mod prometheus;

pub(crate) use counters::{Counters, Kind};
pub(crate) use prometheus::render;
