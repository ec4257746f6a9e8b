//! Templates that this node has.

use std::path::Path;
use std::sync::Arc;

use crate::base::{
    Base, BaseError, BaseOptions, HostEnvironment, HostRoot, current_fingerprint, ensure_base, host_environment,
    open_generation,
};
use crate::guest_program::guest_program_bytes;

/// The name of the template that is made of the host's own files.
pub(crate) const BASE: &str = "base";

/// A root file system to start from.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) name: String,
    base: Base,
    host: HostRoot,
}

impl Template {
    /// The `base` template as the host is now.
    pub(crate) fn base(layers: &Path, options: &BaseOptions) -> Result<Arc<Self>, BaseError> {
        let base = ensure_base(layers, guest_program_bytes(), options)?;
        Ok(Arc::new(Self { name: BASE.to_owned(), base, host: options.host.clone() }))
    }

    /// A generation that a running sandbox stands on.
    pub(crate) fn generation_of(layers: &Path, name: &str, generation: &str) -> Result<Arc<Self>, BaseError> {
        Ok(Arc::new(Self {
            name: name.to_owned(),
            base: open_generation(layers, generation)?,
            host: HostRoot::default(),
        }))
    }

    /// Whether the host is still as it was when this generation was made.
    pub(crate) fn is_current(&self, layers: &Path, options: &BaseOptions) -> bool {
        match current_fingerprint(layers, guest_program_bytes(), options) {
            Ok(generation) => generation == self.generation(),
            // A host that cannot be looked at now gives no reason to begin anew.
            Err(_) => true,
        }
    }

    pub(crate) fn generation(&self) -> &str {
        &self.base.generation
    }

    /// Layers of `/`, topmost first.
    pub(crate) fn root_layers(&self) -> Vec<&Path> {
        vec![&self.base.root_layer]
    }

    /// Layers of `/usr`, topmost first.
    pub(crate) fn usr_layers(&self) -> Vec<&Path> {
        let host: Option<&Path> = self.base.host_usr.as_deref();
        std::iter::once(self.base.usr_layer.as_path()).chain(host).collect()
    }

    /// Variables that make the host's certificates, proxies and package sources usable inside.
    pub(crate) fn host_environment(
        &self,
        which: HostEnvironment,
        variables: impl Iterator<Item = (String, String)>,
    ) -> std::collections::BTreeMap<String, String> {
        host_environment(&self.base, &self.host, which, variables)
    }
}
