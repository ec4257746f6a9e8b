//! Requests that the server makes to others: where they may go, which certificates they trust, and how they are sent.
//!
//! The server can reach what its users cannot: other services on the host and the private network around it. But users
//! choose the addresses of some requests: the URL of a webhook or an agent, `ADD` in a Dockerfile, the registry of an
//! image. So [`Policy`] resolves a name, checks every address of it, and connects only to an address that it checked. A
//! name therefore cannot change its address between the check and the connection. Callers that follow redirects use the
//! policy again for each of them. Addresses from the server's own configuration are exempt, by [`Policy::and`].
//!
//! [`request`] and [`fetch`] make a connection for each request. [`connect`] is for callers with deadlines of their own, and
//! [`PooledClient`] for the many requests to a bucket. All trust the same authorities, by [`Trust`], and no body is
//! collected without a limit ([`collect`]). `isopod-guest-client` has a TLS configuration of its own: it belongs to the
//! public SDK, whose users choose whom they trust and must not need this crate.

mod address;
mod allowed;
mod policy;
mod pooled;
mod request;
pub mod sigv4;
mod target;
mod trust;

pub use allowed::{Allowed, AllowedError};
pub use policy::{OutboundError, Policy};
pub use pooled::PooledClient;
pub use request::{Connection, Outgoing, RequestError, ResponseBody, collect, connect, fetch, request};
pub use target::{Target, TargetError};
pub use trust::Trust;
