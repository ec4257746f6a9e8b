//! The spans and events that the layer passes to the exporter.

use std::time::SystemTime;

/// A span that has ended.
#[derive(Debug)]
pub(crate) struct FinishedSpan {
    pub(crate) trace: [u8; 16],
    pub(crate) id: [u8; 8],
    pub(crate) parent: Option<[u8; 8]>,
    pub(crate) name: &'static str,
    pub(crate) begin: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) events: Vec<SpanEvent>,
    pub(crate) failed: bool,
    /// Whether this is the first span of a request from outside.
    pub(crate) is_root: bool,
}

#[derive(Debug)]
pub(crate) struct SpanEvent {
    pub(crate) at: SystemTime,
    pub(crate) message: String,
    pub(crate) attributes: Vec<(&'static str, Value)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
    Flag(bool),
    Real(f64),
}
