//! Images and Dockerfiles as text, archives and requests. Nothing here starts a process or mounts a file system.

pub mod archive;
pub mod dockerfile;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod layout;
mod manifest;
pub mod pack;
mod reference;
pub mod registry;
mod store;
pub mod unpack;

pub use manifest::{Config, Descriptor, EmptyObject, Manifest, Platform, RootFs, RunConfig};
pub use reference::{Digest, Reference, ReferenceError};
pub use store::{Adding, Collected, Image, Named, PrivateStore, Store, StoreError};
