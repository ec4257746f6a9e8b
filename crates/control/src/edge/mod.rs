//! The edge: a proxy for traffic from outside to what listens inside sandboxes, byte for byte and without buffering.
//!
//! [`route`] decides per request whether it is for a sandbox at all; [`proxy`] takes it there. API handlers are never
//! on this way.

mod credentials;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod gate;
mod headers;
mod proxy;
mod refusal;
mod route;
mod signature;
mod tunnel;

pub(crate) use proxy::proxy;
pub(crate) use route::{Domains, Route, host_name, host_of, route};

use std::sync::Arc;

use crate::lifecycle::Fleet;
use isopod_identity::TokenCheck;

/// What the edge goes by.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) fleet: Arc<Fleet>,
    /// Sandboxes have names below them.
    pub(crate) domains: Domains,
    /// Tells which tokens this server would believe; none where only keys count.
    pub(crate) tokens: Option<TokenCheck>,
}
