//! The `base` template, made of the host's own files without any download.
//!
//! A sandbox's root is two overlay mounts, which others make: `/` over [`Base::root_layer`], and `/usr` over
//! [`Base::usr_layer`] over the host's `/usr`. This module makes the two layers and says what is in them. It never
//! changes the host, never follows a link out of what its allow-list names, and takes nothing that the host hides from
//! its own users: inside, root owns all it sees. Owners on disk are those seen inside (root 0, `user` 1000), since the
//! layers are id-mapped when they are mounted.
//!
//! The host's `/usr` is a live lower layer. Its state is part of a generation's name, so that an upgrade of the host
//! begins a new generation ([`current_fingerprint`]); a frozen base copies `/usr` instead.

mod accounts;
mod allowlist;
mod copy;
mod ensure;
mod environment;
mod error;
mod facts;
mod fingerprint;
mod frozen;
mod generation;
mod host;
mod inside;
mod layer;
mod manifest;
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
pub use generation::{Base, Generation, list_generations, open_generation, remove_generation};
pub use host::HostRoot;
pub use manifest::{BaseFacts, Pip, Sudo};
