//! Contracts that the parts of Isopod share: typed ids, limits, network policy, the node API and the guest's RPC
//! messages. Nothing here does I/O or knows how a contract is kept.

pub mod build;
mod id;
mod limits;
mod network;
pub mod node;
#[cfg(feature = "rpc")]
pub mod rpc;

pub use id::{ExecutionId, IdError, SandboxId};
pub use limits::{Bytes, Limits, LimitsError};
pub use network::{Cidr, NetworkPolicy, NetworkPolicyError};

/// The version of the in-sandbox protocol that the guest speaks and the API reports as `envdVersion`.
///
/// The official SDKs switch features on by comparing against it, so every feature gated at or below it must work.
pub const ENVD_VERSION: &str = "0.6.13";

/// The port on which clients believe the guest listens.
pub const GUEST_PORT: u16 = 49983;

/// The port on which clients believe the code interpreter listens.
pub const INTERPRETER_PORT: u16 = 49999;
