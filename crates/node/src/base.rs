//! The base template, with the sandboxes of this node as the users of its generations.

use std::io;
use std::path::Path;

pub use isopod_base::{
    Base, BaseError, BaseFacts, BaseOptions, Generation, HostEnvironment, HostRoot, Pip, Sudo, current_fingerprint,
    host_environment, open_generation,
};

use crate::layer_users::LayerUsers;

/// Returns the base of this host in its current state. Builds it if it does not exist.
pub fn ensure_base(layers_dir: &Path, guest_binary: &[u8], options: &BaseOptions) -> Result<Base, BaseError> {
    isopod_base::ensure_base(layers_dir, guest_binary, options, is_used)
}

/// All generations, sorted by name.
pub fn list_generations(layers_dir: &Path) -> Result<Vec<Generation>, BaseError> {
    isopod_base::list_generations(layers_dir, is_used)
}

/// Removes a generation that no process holds and no sandbox uses.
pub fn remove_generation(layers_dir: &Path, id: &str) -> Result<(), BaseError> {
    isopod_base::remove_generation(layers_dir, id, is_used)
}

fn is_used(layers_dir: &Path, generation: &str) -> io::Result<bool> {
    LayerUsers::of_generations(layers_dir).have_base(generation)
}
