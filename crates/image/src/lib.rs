//! Images and Dockerfiles, as far as they are texts, archives and requests: nothing here starts a process or mounts.

pub mod archive;
pub mod dockerfile;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod manifest;
mod reference;
pub mod registry;
mod store;
pub mod unpack;

pub use manifest::{Config, Descriptor, Manifest, Platform, RootFs, RunConfig};
pub use reference::{Digest, Reference, ReferenceError};
pub use store::{Adding, Collected, Image, Named, PrivateStore, Store, StoreError};
