//! What the routes of a server are made of: rules about who may call them, the audit, bodies and query strings, errors, and the
//! OpenAPI document that is read off all of that.
//!
//! A crate with routes registers them by [`Routes`], and `isopod-server` puts all of them together. Nothing here knows what a
//! route does.

mod actions;
mod answers;
pub mod audit;
mod audited;
mod auth;
mod body;
mod describe;
mod document;
mod error;
mod execution_claim;
mod lenient;
mod params;
mod peer;
pub mod query;
mod receipt;
mod routes;
mod rule;
mod stalled;

pub use actions::Actions;
pub use answers::{
    Accepted, Created, Download, Empty, EventStream, Headers, JsonLines, Listing, MadeOrFound, MetricsText, NoContent,
    Prepared, Upgraded,
};
pub use audited::{Audit, Durability, audited};
pub use auth::{Authenticator, Caller};
pub use body::{Archive, JsonBody, MaxBody, Query, body_error};
pub use describe::{DescribeAnswer, DescribeInput, DescribedHandler, Description};
pub use document::{Document, VOLUME_TOKEN};
pub use error::{ApiError, with_fallbacks};
pub use execution_claim::{claimed_execution, known_execution};
pub use params::{NoParams, Param, QueryParams};
pub use peer::Peer;
pub use receipt::{Receipt, until_answered};
pub use routes::{Endpoint, Routes, any, delete, get, head, patch, post, put};
pub use rule::{DeclaredRoute, Needs, Rule, changes, reads, refuses};
pub use stalled::SteadyBody;
