//! Requests that the server makes to others: where they may go, whom they trust, and how they are sent.
//!
//! The server stands where its users do not: on the host, beside its other services, in its private network. Users name
//! addresses all the same: a webhook's URL, an agent's, `ADD` in a Dockerfile, an image's registry. So [`Policy`] resolves a
//! name, looks at every address that it has, and dials exactly an address that it looked at: a name cannot change its mind
//! in between. Callers that follow redirects come here again for each of them. What the operator wrote into the server's
//! own settings is exempt, by [`Policy::and`].

mod address;
mod allowed;
mod policy;
mod request;
pub mod sigv4;
mod target;
mod trust;

pub use allowed::{Allowed, AllowedError};
pub use policy::{OutboundError, Policy};
pub use request::{Outgoing, RequestError, fetch, request};
pub use target::{Target, TargetError};
pub use trust::Trust;
