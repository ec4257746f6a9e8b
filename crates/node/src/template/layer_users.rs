//! The templates and layers that sandboxes use, from records and manifests.

use std::io;
use std::path::Path;

use super::layer::{LayerError, layers_below};
use super::manifest::{BUILT_PREFIX, Manifest, ManifestError};
use crate::generation_name::GenerationName;
use crate::layer_users::LayerUsers;

impl LayerUsers {
    /// Whether a sandbox uses this built template.
    pub(crate) fn have_template(&self, id: &str) -> io::Result<bool> {
        Ok(self.generations()?.iter().any(|used| GenerationName::parse(used).top == Some(id)))
    }

    /// Whether a sandbox uses this layer, directly or through a built template.
    ///
    /// # Errors Also if the manifest of a sandbox's template is damaged, of a later version or gone, because the
    /// sandbox may then use any layer.
    pub(crate) fn have_layer(&self, templates: &Path, layer: &str) -> io::Result<bool> {
        for used in self.generations()? {
            let is_used = match GenerationName::parse(&used).top {
                Some(id) if id.starts_with(BUILT_PREFIX) => self.layers_of(templates, id)?.iter().any(|on| on == layer),
                Some(top) => top == layer || below(templates, top)?.iter().any(|on| on == layer),
                None => false,
            };
            if is_used {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The layers of this built template.
    fn layers_of(&self, templates: &Path, id: &str) -> io::Result<Vec<String>> {
        match Manifest::load(templates, id) {
            Ok(manifest) => Ok(manifest.template.layers),
            // Its last sandbox has ended and it was removed, both since the records were read.
            Err(ManifestError::Missing(_)) if !self.have_template(id)? => Ok(Vec::new()),
            Err(error) => Err(error.into_io()),
        }
    }
}

fn below(templates: &Path, layer: &str) -> io::Result<Vec<String>> {
    layers_below(templates, layer).map_err(|error| match error {
        LayerError::Store { source, .. } => source,
        other => io::Error::other(other),
    })
}
