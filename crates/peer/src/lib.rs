//! A cluster: servers on one database that answer for each other. What another server has is forwarded to it, so that
//! clients may talk to any of them.
//!
//! - [`Identity`]: the certificates. The cluster has its own authority, and each server a certificate with its id.
//! - [`init`]: makes a cluster of one server.
//! - [`join`] and [`JoinToken`]: how a machine becomes a member.
//! - [`Cluster`]: the running member. Its listener takes requests of other members, and [`Cluster::answer`] finds the
//!   server for a request of a client.
//!
//! A forwarded request is HTTP/1.1 in a stream of HTTP/2 over mutual TLS, one stream for each. So everything HTTP/1.1 can
//! do passes unchanged: the case of header names, upgrades, streams both ways, and responses that break off. Who the
//! client is stands beside that stream, in the headers of HTTP/2, where clients cannot write.
//!
//! A request is forwarded once at most: a server never forwards what another member sent.

mod answer;
mod certificate;
mod cluster;
mod dial;
mod forward;
mod identity;
mod init;
mod join;
mod listen;
mod locations;
mod members;
mod origin;
mod placement;
mod pool;
mod question;
mod replay;
mod server_id;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod token;

pub use answer::Here;
pub use cluster::{Cluster, ClusterSettings, OpenError};
pub use forward::ForwardError;
pub use identity::{Identity, IdentityError};
pub use init::{InitError, init};
pub use join::{JoinError, join};
pub use origin::Origin;
pub use placement::{ByLoad, Placement};
pub use question::Question;
pub use server_id::{ServerId, ServerIdError};
pub use stream::TunnelStream;
pub use token::{JoinTarget, JoinToken, TokenError};
