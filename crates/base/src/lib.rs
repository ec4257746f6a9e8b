//! The `base` template, made from the host's own files without any download.
//!
//! A sandbox's root consists of two overlay mounts, which the node makes: `/` over [`Base::root_layer`], and `/usr`
//! over [`Base::usr_layer`] over the host's `/usr`. This crate creates the two layers and describes their contents. It
//! never changes the host and never follows a link out of the allow-list. It takes nothing that the host hides from its
//! own users, because root in a sandbox owns everything it sees. Owners on disk are those that the sandbox sees (root
//! 0, `user` 1000): the layers are id-mapped when they are mounted.
//!
//! The host's `/usr` is a live lower layer. Its state is part of a generation's name, so an upgrade of the host starts
//! a new generation ([`current_fingerprint`]). A frozen base copies `/usr` instead.

mod accounts;
mod allowlist;
mod copy;
mod driver_files;
mod ensure;
mod environment;
mod error;
mod facts;
mod fingerprint;
mod frozen;
mod generation;
mod host;
mod layer;
mod manifest;
mod merged_root;
mod mounts;
mod packages;
mod root_layer;
mod secrets;
mod settings;
#[cfg(test)]
mod tests;
mod usr_layer;
mod usr_scan;

pub use ensure::{BaseOptions, current_fingerprint, ensure_base};
pub use environment::{HostEnvironment, host_environment};
pub use error::BaseError;
pub use generation::{Base, Generation, IsUsed, list_generations, open_generation, remove_generation};
pub use host::HostRoot;
pub use manifest::{BaseFacts, Pip, Sudo};
