//! The edge: a proxy from outside to services inside sandboxes. It passes every byte unchanged and without buffering.
//!
//! [`route`] decides whether a request is for a sandbox, and [`proxy`] forwards it. These requests never reach API
//! handlers.

mod break_off;
mod credentials;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod gate;
mod headers;
mod preview;
mod proxy;
mod refusal;
mod route;
mod signature;
mod tunnel;

pub use preview::PreviewNames;
pub(crate) use proxy::{proxy, proxy_from_inside};
pub(crate) use refusal::Refusal;
pub(crate) use route::{Address, Domains, Route, host_name, host_of, route};

use std::sync::Arc;

use crate::lifecycle::Fleet;
use isopod_identity::TokenCheck;

/// What the edge needs to route and forward requests.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) fleet: Arc<Fleet>,
    /// The domains below which sandboxes have names.
    pub(crate) domains: Domains,
    /// Checks which team tokens are valid here. `None` if the server accepts only keys.
    pub(crate) tokens: Option<TokenCheck>,
}
