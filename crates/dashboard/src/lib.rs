//! The dashboard: pages for browsers, below `/dashboard`.
//!
//! It has no private doors. Handlers call the same API and the same edge as every other client ([`Front`]), with the key
//! that the browser signed in with, so that every scope, limit and audit line applies. The browser holds that key only
//! encrypted, in its cookie ([`session`]).
//!
//! [`guard`] protects all pages: it checks the session, the origin of requests and the token of forms, and sets the
//! security headers. Text from sandboxes becomes HTML only through [`maud`], which escapes it.

mod api;
mod assets;
mod cookies;
mod failure;
mod flash;
mod guard;
mod guest;
mod live;
mod origin;
mod page;
mod pages;
mod root;
mod routes;
mod seal;
mod session;
mod show;
mod sign_in;
mod visit;

use std::sync::Arc;

use axum::Router;
use isopod_api::Guesses;
use tokio_util::sync::CancellationToken;

pub use routes::{router, routes};
pub use seal::SealKey;
use session::SignedOut;

/// Wrong keys that one address may send in a minute.
const WRONG_KEYS_PER_MINUTE: u32 = 10;

/// The settings of the dashboard.
#[derive(Clone, Debug)]
pub struct DashboardConfig {
    /// Whether the pages are served.
    pub enabled: bool,
    /// Encrypts the cookies. If the next server has the same key, browsers stay signed in.
    pub key: SealKey,
}

impl Default for DashboardConfig {
    fn default() -> Self {
        Self { enabled: true, key: SealKey::random() }
    }
}

/// What clients of the server reach.
#[derive(Clone, Debug)]
pub struct Front {
    /// The API.
    pub api: Router,
    /// The sandboxes, named by the routing headers.
    pub sandboxes: Router,
}

/// The state that all pages share.
#[derive(Debug)]
pub struct Dashboard {
    front: Front,
    key: SealKey,
    /// `host[:port]` below which sandboxes have their names.
    domain: String,
    guesses: Guesses,
    signed_out: SignedOut,
    /// Cancelled when the server stops, which ends live pages.
    closing: CancellationToken,
}

impl Dashboard {
    /// Creates the dashboard of a server. `domain` is `host[:port]` as clients are told it.
    pub fn new(config: &DashboardConfig, front: Front, domain: &str, closing: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            front,
            key: config.key.clone(),
            domain: domain.to_owned(),
            guesses: Guesses::new(WRONG_KEYS_PER_MINUTE),
            signed_out: SignedOut::default(),
            closing,
        })
    }
}
