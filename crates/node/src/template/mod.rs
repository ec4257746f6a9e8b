//! Templates that this node has: a generation of the base, layers that were kept on top of it, and perhaps a code
//! interpreter.

mod keep;
mod layer;
mod progress;
mod recipe;

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use keep::{KeepError, keep_area};
pub(crate) use layer::{KeptLayer, LayerError};
pub use layer::{LayerInfo, list_layers, remove_layer, remove_unfinished};
pub(crate) use progress::{Step, read_progress};
pub use recipe::{Made, can_make, made_templates};
pub(crate) use recipe::{Recipe, find_recipe, recipes};

use crate::base::{
    Base, BaseError, BaseFacts, BaseOptions, HostEnvironment, HostRoot, current_fingerprint, ensure_base,
    host_environment, open_generation,
};
use crate::guest_program::guest_program_bytes;
use crate::state::StateRoot;
use crate::zygote::Zygote;

/// The name of the template that is made of the host's own files.
pub(crate) const BASE: &str = "base";

/// Why a template cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error(transparent)]
    Base(#[from] BaseError),
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// A root file system to start from.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) name: String,
    base: Base,
    host: HostRoot,
    /// What stands on the base, if anything.
    layer: Option<Arc<KeptLayer>>,
    generation: String,
    /// Set where sandboxes serve a code interpreter.
    interpreter: Option<Interpreter>,
}

/// How sandboxes of a template come to their interpreter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interpreter {
    /// Brings a warm one. Without it every sandbox starts its own when it is first asked.
    pub(crate) zygote: Option<Arc<Zygote>>,
}

/// Between the base's generation and the layer's id.
const JOINT: char = '+';

impl Template {
    /// The `base` template as the host is now.
    pub(crate) fn base(layers: &Path, options: &BaseOptions) -> Result<Arc<Self>, BaseError> {
        let base = ensure_base(layers, guest_program_bytes(), options)?;
        Ok(Arc::new(Self {
            name: BASE.to_owned(),
            generation: base.generation.clone(),
            base,
            host: options.host.clone(),
            layer: None,
            interpreter: None,
        }))
    }

    /// Something that stands on the same base.
    pub(crate) fn derive(
        &self,
        name: &str,
        layer: Option<Arc<KeptLayer>>,
        interpreter: Option<Interpreter>,
    ) -> Arc<Self> {
        let generation = match &layer {
            Some(layer) => format!("{}{JOINT}{}", self.base.generation, layer.id()),
            None => self.base.generation.clone(),
        };
        let (base, host) = (self.base.clone(), self.host.clone());
        Arc::new(Self { name: name.to_owned(), base, host, layer, generation, interpreter })
    }

    /// A generation that a running sandbox stands on.
    pub(crate) fn generation_of(state: &StateRoot, name: &str, generation: &str) -> Result<Arc<Self>, TemplateError> {
        let (base, layer) = match generation.split_once(JOINT) {
            Some((base, layer)) => (base, Some(Arc::new(KeptLayer::open(&state.templates(), layer)?))),
            None => (generation, None),
        };
        let interpreter = find_recipe(name).filter(|recipe| recipe.has_interpreter).map(|_| Interpreter::default());
        Ok(Arc::new(Self {
            name: name.to_owned(),
            base: open_generation(&state.layers(), base)?,
            host: HostRoot::default(),
            layer,
            generation: generation.to_owned(),
            interpreter,
        }))
    }

    /// Whether the host is still as it was when this generation was made.
    pub(crate) fn is_current(&self, layers: &Path, options: &BaseOptions) -> bool {
        match current_fingerprint(layers, guest_program_bytes(), options) {
            Ok(generation) => generation == self.base.generation,
            // A host that cannot be looked at now gives no reason to begin anew.
            Err(_) => true,
        }
    }

    pub(crate) fn generation(&self) -> &str {
        &self.generation
    }

    /// When it was finished: nothing is written into its layers afterwards.
    pub(crate) fn made_at(&self) -> Option<SystemTime> {
        let topmost = self.layer.as_ref().map_or(self.base.root_layer.as_path(), |layer| layer.root());
        topmost.parent()?.metadata().ok()?.modified().ok()
    }

    /// What the base offers.
    pub(crate) fn facts(&self) -> &BaseFacts {
        &self.base.facts
    }

    pub(crate) fn layer(&self) -> Option<&Arc<KeptLayer>> {
        self.layer.as_ref()
    }

    pub(crate) fn interpreter(&self) -> Option<&Interpreter> {
        self.interpreter.as_ref()
    }

    /// A zygote that can enter sandboxes of this template, if there is one and it lives.
    pub(crate) fn zygote(&self) -> Option<&Arc<Zygote>> {
        self.interpreter.as_ref()?.zygote.as_ref().filter(|zygote| zygote.is_alive())
    }

    /// Layers of `/`, topmost first.
    pub(crate) fn root_layers(&self) -> Vec<&Path> {
        let kept = self.layer.as_ref().map(|layer| layer.root());
        kept.into_iter().chain([self.base.root_layer.as_path()]).collect()
    }

    /// Layers of `/usr`, topmost first.
    pub(crate) fn usr_layers(&self) -> Vec<&Path> {
        let kept = self.layer.as_ref().map(|layer| layer.usr());
        let host = self.base.host_usr.as_deref();
        kept.into_iter().chain([self.base.usr_layer.as_path()]).chain(host).collect()
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
