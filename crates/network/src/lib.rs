//! The network of a node. Every sandbox has a slot: a routed veth pair, one address of the node's pool, and the rules
//! that hold for all sandboxes; a sandbox with a policy of its own has a chain besides. All of it is spoken to the
//! kernel directly, by netlink, without `ip` or `nft`.
//!
//! Promises: a sandbox reaches neither this host, nor its neighbours, nor a cloud's metadata service, whatever its
//! policy says; a policy takes effect as a whole and at once, also on open connections; what is left after a crash can
//! be found by name and swept. Leaves to others: choosing slots, and reaching into a
//! sandbox from outside (no connection from the host to a sandbox's address is possible).
//!
//! The life of a slot: `plumb` an empty namespace, `set_policy` before the sandbox's first process runs and whenever it
//! changes, `unplumb` after its last one is gone. Slots best go round the whole pool before one is used again, unless
//! nothing ever happened on one ([`Network::is_as_new`]): then it may serve the next sandbox as it is.
//!
//! All methods block for a millisecond or so (`unplumb` for some tens) and may be called from several threads, all of
//! them in the host's network namespace.

mod flows;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod host_network;
mod names;
mod netlink;
mod netns;
mod network;
mod nft;
mod policy;
mod preflight;
mod ranges;
mod resolver;
mod route;
mod rules;
mod slot;
mod sysctl;
mod uplink;
mod witness;

#[cfg(test)]
mod tests;

pub use names::{NotATag, Slot, Tag};
pub use netlink::NetlinkError;
pub use netns::make_network_namespace;
pub use network::{DEFAULT_MAX_CONNECTIONS, DEFAULT_POOL, Network, NetworkConfig, NetworkError, Plumbed};
pub use preflight::{Finding, preflight};
pub use resolver::Resolvers;
pub use slot::{GATEWAY, SlotError};
pub use sysctl::SysctlError;
pub use uplink::UplinkError;
pub use witness::Witness;
