//! The building blocks of routes: access rules, the audit log, bodies and query strings, errors, and the OpenAPI
//! document that is derived from them.
//!
//! A crate with routes registers them with [`Routes`], and `isopod-server` combines all of them. This crate does not
//! know what a route does.

mod actions;
mod answers;
pub mod audit;
mod audited;
mod auth;
mod body;
mod client_network;
mod describe;
mod document;
mod error;
mod execution_claim;
mod framing;
mod guesses;
mod hop;
mod lenient;
mod located;
mod location;
mod params;
mod peer;
mod per_team_limit;
pub mod query;
mod receipt;
mod reply_budget;
mod routes;
mod rule;
mod stalled;
mod upload;

pub use actions::Actions;
pub use answers::{
    Accepted, Created, CreatedOrFound, Download, Empty, EventStream, Headers, JsonLines, Listing, MetricsText,
    NoContent, Prepared, Upgraded,
};
pub use audited::{Audit, Durability, audited};
pub use auth::{Authenticator, Caller};
pub use body::{Archive, JsonBody, MaxBody, Query, body_error};
pub use client_network::{ClientNetwork, address_of};
pub use describe::{DescribeAnswer, DescribeInput, DescribedHandler, Description};
pub use document::{Document, VOLUME_TOKEN};
pub use error::{ApiError, with_fallbacks};
pub use execution_claim::{claimed_execution, known_execution};
pub use framing::Framing;
pub use guesses::Guesses;
pub use hop::{Elsewhere, HopSignal, MayForward};
pub use located::LocatedRoutes;
pub use location::{Located, Location};
pub use params::{NoParams, Param, QueryParams};
pub use peer::{Peer, scheme_of};
pub use per_team_limit::{PerTeamLimit, TeamPermit};
pub use receipt::{Receipt, until_answered};
pub use routes::{Endpoint, Routes, any, delete, get, head, page, patch, post, put, submit};
pub use rule::{DeclaredRoute, Needs, Rule, changes, reads, refuses};
pub use stalled::TimeoutBody;
pub use upload::Upload;
