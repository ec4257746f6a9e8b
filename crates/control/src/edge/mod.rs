//! The edge: carries traffic from outside to what listens inside sandboxes, byte for byte and without buffering.
//!
//! [`route`] decides per request whether it is for a sandbox at all; [`carry`] takes it there. API handlers are never
//! on this way.

mod carry;
mod frames;
mod gate;
mod headers;
mod health;
mod output;
mod refusal;
mod route;
mod signature;
mod tunnel;
mod upstreams;

pub(crate) use carry::carry;
pub(crate) use headers::Peer;
pub(crate) use health::guest_is_healthy;
pub(crate) use output::{Channel, OutputBlock, OutputPage, read_output};
pub(crate) use route::{Domain, Route, host_name, host_of, route};
pub(crate) use upstreams::Upstreams;
