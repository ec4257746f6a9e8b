//! HTTP connections into running sandboxes, for traffic that the edge forwards and for the server's own requests to a
//! guest.

mod connect;
mod health;
mod output;
mod pool;

pub(crate) use connect::{ConnectError, connect, start_http};
pub(crate) use health::guest_is_healthy;
pub(crate) use output::{Channel, OutputBlock, OutputPage, read_output};
pub(crate) use pool::Upstreams;

/// Marks a request of the server itself. The edge removes it from clients' requests.
pub(crate) const CONTROL_HEADER: &str = "x-isopod-control";
