//! HTTP connections into running sandboxes: for the traffic that the edge passes on, and for what the server itself asks a
//! guest.

mod connect;
mod health;
mod output;
mod pool;

pub(crate) use connect::{ConnectError, connect, speak};
pub(crate) use health::guest_is_healthy;
pub(crate) use output::{Channel, OutputBlock, OutputPage, read_output};
pub(crate) use pool::Upstreams;

/// Says to the guest that the server asks for itself. Clients may not say so.
pub(crate) const CONTROL_HEADER: &str = "x-isopod-control";
