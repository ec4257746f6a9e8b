//! The network of a node. Every sandbox has a slot: a routed veth pair, one address from the node's pool, and the rules
//! that apply to all sandboxes. A sandbox with a policy of its own also has a chain. The crate talks to the kernel
//! directly over netlink and does not use `ip` or `nft`.
//!
//! Promises:
//!
//! - A sandbox cannot reach this host, its neighbours or a cloud's metadata service, whatever its policy says.
//! - A policy takes effect atomically, and also on open connections.
//! - Anything left after a crash can be found by its name and swept.
//!
//! Two things are left to others: choosing slots, and reaching into a sandbox from outside (the host cannot connect to
//! a sandbox's address).
//!
//! The life of a slot: `plumb` connects an empty namespace. `set_policy` runs before the sandbox's first process and
//! whenever the policy changes. `unplumb` runs after the last process is gone. It is best to cycle through the whole
//! pool before a slot is reused. A slot on which nothing ever happened ([`Network::is_as_new`]) may serve the next
//! sandbox as it is.
//!
//! All methods block for about a millisecond (`unplumb` for tens of milliseconds). They may be called from several
//! threads, all of them in the host's network namespace.

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
mod traffic_counters;
mod uplink;

#[cfg(test)]
mod tests;

pub use names::{NotATag, Slot, Tag};
pub use netlink::NetlinkError;
pub use netns::make_network_namespace;
pub use network::{DEFAULT_MAX_CONNECTIONS, DEFAULT_POOL, Network, NetworkConfig, NetworkError, SandboxView};
pub use preflight::{Finding, preflight};
pub use resolver::Resolvers;
pub use slot::{GATEWAY, SlotError};
pub use sysctl::SysctlError;
pub use traffic_counters::TrafficCounters;
pub use uplink::UplinkError;
