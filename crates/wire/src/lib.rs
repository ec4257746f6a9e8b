//! Contracts between the parts of Isopod: typed ids, limits, network policy, the node API and the guest's RPC messages.
//! Nothing here does I/O or knows how a contract is implemented.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("Isopod runs on Linux on x86-64 only; other processors, such as arm64, are not supported yet");

pub mod build;
pub mod checkpoint;
pub mod compat;
pub mod delivery;
mod error_chain;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod id;
mod kernel_features;
mod limits;
mod network;
pub mod node;
#[cfg(feature = "rpc")]
pub mod rpc;
mod secret;

pub use error_chain::error_chain;
pub use id::{ExecutionId, IdError, SandboxId, SnapshotId};
pub use kernel_features::{ALLOW, FeatureError, FeatureGrants, KernelFeature, KernelFeatures, asks_for_fuse};
pub use limits::{Bytes, Limits, LimitsError};
pub use network::{Cidr, NetworkPolicy, NetworkPolicyError, PRIVATE_NETWORKS};
pub use secret::Secret;

/// The version of the protocol between clients and the guest, which the API reports as `envdVersion`.
///
/// The official SDKs enable features by this version, so every feature up to it must work.
pub const ENVD_VERSION: &str = "0.6.13";

/// The port at which clients address the guest.
pub const GUEST_PORT: u16 = 49983;

/// The port at which clients address the code interpreter.
pub const INTERPRETER_PORT: u16 = 49999;
