//! The templates of this node: a generation of the base, layers on top of it, and optionally a code interpreter.

mod commit_layer;
mod layer;
mod layer_users;
mod manifest;
mod progress;
mod python_packages;
mod recipe;

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use commit_layer::{CommitError, Existing, Stamps, commit_area, commit_changes, layer_bounds};
use isopod_isolation::launch::{KeptLayers, RootLayers, RootStyle};
pub(crate) use layer::{Layer, LayerError, Scratch, make_layer};
pub use layer::{LayerInfo, layer_names, list_layers, remove_layer, remove_unfinished};
pub(crate) use manifest::{BUILT_PREFIX, Container, Manifest, ManifestError};
pub(crate) use progress::{STEP, Step, read_progress};
pub use python_packages::{PackageDifference, package_differences};
pub(crate) use recipe::{Part, Recipe, RecipeLayers, facts_key, find_recipe, recipes};
pub use recipe::{RecipeInfo, has_recipe, list_recipes};

use crate::base::{
    Base, BaseError, BaseFacts, BaseOptions, HostEnvironment, HostRoot, current_fingerprint, ensure_base,
    host_environment, open_generation,
};
use crate::generation_name::{GenerationName, NO_BASE};
use crate::guest_program::guest_program_bytes;
use crate::state::StateRoot;
use crate::zygote::Zygote;

/// The name of the template that is made from the host's own files.
pub(crate) const BASE: &str = "base";

/// Why a template cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error(transparent)]
    Base(#[from] BaseError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// A root file system to start from.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) name: String,
    /// `None` if the layers are a complete system, as those of an image are.
    base: Option<Base>,
    host: HostRoot,
    /// The layers on top of the base, topmost first.
    layers: Vec<Arc<Layer>>,
    /// The manifest, if a build created it.
    built: Option<Arc<Manifest>>,
    style: RootStyle,
    generation: String,
    /// Set if sandboxes have a code interpreter.
    interpreter: Option<Interpreter>,
}

/// How the sandboxes of a template get their interpreter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interpreter {
    /// Provides a warm one. Without it, every sandbox starts its own on first use.
    pub(crate) zygote: Option<Arc<Zygote>>,
    /// Whether there should be a zygote.
    pub(crate) takes_zygotes: bool,
}

impl Template {
    /// The `base` template of the host's current state.
    pub(crate) fn base(layers: &Path, options: &BaseOptions) -> Result<Arc<Self>, BaseError> {
        let base = ensure_base(layers, guest_program_bytes(), options)?;
        Ok(Arc::new(Self {
            name: BASE.to_owned(),
            generation: base.generation.clone(),
            base: Some(base),
            host: options.host.clone(),
            layers: Vec::new(),
            built: None,
            style: RootStyle::default(),
            interpreter: None,
        }))
    }

    /// A template on the same base, with these layers, topmost first.
    pub(crate) fn derive(&self, name: &str, layers: Vec<Arc<Layer>>, interpreter: Option<Interpreter>) -> Arc<Self> {
        let top = layers.first().map(|layer| layer.id());
        let generation = GenerationName { base: self.base_generation(), top }.to_string();
        Arc::new(Self {
            name: name.to_owned(),
            base: self.base.clone(),
            host: self.host.clone(),
            layers,
            built: None,
            style: RootStyle::default(),
            generation,
            interpreter,
        })
    }

    /// The same template, with this zygote as the source of interpreters.
    pub(crate) fn with_zygote(&self, zygote: Arc<Zygote>) -> Arc<Self> {
        Arc::new(Self { interpreter: Some(Interpreter { zygote: Some(zygote), takes_zygotes: true }), ..self.clone() })
    }

    /// A built template, on the current base if it uses one.
    pub(crate) fn built(base: &Self, manifest: Manifest, templates: &Path) -> Result<Arc<Self>, TemplateError> {
        let open = |id: &String| Ok(Arc::new(Layer::open(templates, id)?));
        let layers: Result<Vec<_>, LayerError> = manifest.template.layers.iter().rev().map(open).collect();
        let kept_base = base.base.clone().filter(|_| manifest.on_host);
        let generation_of_base = kept_base.as_ref().map_or(NO_BASE, |base| &base.generation);
        let generation = GenerationName { base: generation_of_base, top: Some(&manifest.template.id) }.to_string();
        Ok(Arc::new(Self {
            name: manifest.template.id.clone(),
            generation,
            base: kept_base,
            host: base.host.clone(),
            layers: layers?,
            style: RootStyle { scratch_on_disk: true, no_redirects: false },
            interpreter: manifest.has_interpreter.then(Interpreter::default),
            built: Some(Arc::new(manifest)),
        }))
    }

    /// The template in which a recipe runs: the base with these layers of the same recipe, topmost first.
    pub(crate) fn for_recipe(base: &Self, layers: Vec<Arc<Layer>>) -> Arc<Self> {
        let template = base.derive(BASE, layers, None);
        Arc::new(Self { style: RootStyle { no_redirects: true, ..RootStyle::default() }, ..(*template).clone() })
    }

    /// The template of a running build: these layers, topmost first, on the base or on nothing.
    pub(crate) fn for_build(base: &Self, on_host: bool, layers: Vec<Arc<Layer>>) -> Arc<Self> {
        let base_of = base.base.clone().filter(|_| on_host);
        let generation = base_of.as_ref().map_or(NO_BASE, |base| &base.generation).to_owned();
        Arc::new(Self {
            name: BASE.to_owned(),
            base: base_of,
            host: base.host.clone(),
            layers,
            built: None,
            style: RootStyle { scratch_on_disk: true, no_redirects: true },
            generation,
            interpreter: None,
        })
    }

    /// The generation that a running sandbox uses.
    pub(crate) fn generation_of(state: &StateRoot, name: &str, generation: &str) -> Result<Arc<Self>, TemplateError> {
        let GenerationName { base, top } = GenerationName::parse(generation);
        let layers = match top {
            Some(built) if built.starts_with(BUILT_PREFIX) => return Self::built_on(state, base, built),
            Some(layer) => Layer::open_stack(&state.templates(), layer)?,
            None => Vec::new(),
        };
        let interpreter = find_recipe(name).and_then(Recipe::new_interpreter);
        Ok(Arc::new(Self {
            name: name.to_owned(),
            base: Some(open_generation(&state.layers(), base)?),
            host: HostRoot::default(),
            layers,
            built: None,
            style: RootStyle::default(),
            generation: generation.to_owned(),
            interpreter,
        }))
    }

    /// A built template, on the base that a sandbox uses.
    fn built_on(state: &StateRoot, base: &str, id: &str) -> Result<Arc<Self>, TemplateError> {
        let below = Self {
            name: BASE.to_owned(),
            base: if base == NO_BASE { None } else { Some(open_generation(&state.layers(), base)?) },
            host: HostRoot::default(),
            layers: Vec::new(),
            built: None,
            style: RootStyle::default(),
            generation: base.to_owned(),
            interpreter: None,
        };
        Self::built(&below, Manifest::load(&state.templates(), id)?, &state.templates())
    }

    /// Whether the host has not changed since this generation was created.
    pub(crate) fn is_current(&self, layers: &Path, options: &BaseOptions) -> bool {
        match current_fingerprint(layers, guest_program_bytes(), options) {
            Ok(generation) => generation == self.base_generation(),
            // If the host cannot be read now, keep the generation.
            Err(_) => true,
        }
    }

    pub(crate) fn generation(&self) -> &str {
        &self.generation
    }

    /// When it was finished. Nothing is written into its layers afterwards.
    pub(crate) fn made_at(&self) -> Option<SystemTime> {
        let base = self.base.as_ref().map(|base| base.root_layer.as_path());
        let topmost = self.layers.first().map(|layer| layer.root()).or(base)?;
        topmost.parent()?.metadata().ok()?.modified().ok()
    }

    /// What the base offers.
    ///
    /// # Panics For a template without a base. The base and the recipes have one.
    pub(crate) fn facts(&self) -> &BaseFacts {
        &self.base.as_ref().expect("the base and recipes have a base").facts
    }

    /// The layers on top of the base, topmost first.
    pub(crate) fn layers(&self) -> &[Arc<Layer>] {
        &self.layers
    }

    /// The manifest, if a build created it.
    pub(crate) fn manifest(&self) -> Option<&Arc<Manifest>> {
        self.built.as_ref()
    }

    /// Whether it contains the host's own files.
    pub(crate) fn is_on_host(&self) -> bool {
        self.base.is_some()
    }

    /// Whether it is on the same generation of the base as another one.
    pub(crate) fn has_base_of(&self, other: &Self) -> bool {
        self.base_generation() == other.base_generation()
    }

    fn base_generation(&self) -> &str {
        self.base.as_ref().map_or(NO_BASE, |base| &base.generation)
    }

    pub(crate) fn interpreter(&self) -> Option<&Interpreter> {
        self.interpreter.as_ref()
    }

    /// Whether a zygote may run its code. Only if the operator chose every byte of it, which is not the case for build
    /// steps.
    pub(crate) fn takes_zygotes(&self) -> bool {
        self.interpreter.as_ref().is_some_and(|interpreter| interpreter.takes_zygotes) && self.built.is_none()
    }

    /// A running zygote that can enter sandboxes of this template.
    pub(crate) fn zygote(&self) -> Option<&Arc<Zygote>> {
        self.interpreter.as_ref()?.zygote.as_ref().filter(|zygote| zygote.is_alive())
    }

    /// The directories of a root, with `upper` as the writable one.
    pub(crate) fn root_with<'a>(&'a self, templates: &'a Path, upper: &'a Path) -> RootLayers<'a> {
        let base = self.base.as_ref();
        let root = base.map(|base| base.root_layer.as_path()).into_iter().collect();
        let host = base.and_then(|base| base.host_usr.as_deref());
        let usr = base.map(|base| base.usr_layer.as_path()).into_iter().chain(host).collect();
        let kept = (!self.layers.is_empty()).then(|| self.kept_layers(templates));
        RootLayers { root, usr, kept, upper, style: self.style }
    }

    fn kept_layers<'a>(&'a self, templates: &'a Path) -> KeptLayers<'a> {
        let names = |part: &str| self.layers.iter().map(|layer| format!("{}/{part}", layer.id())).collect();
        let usr = if self.base.is_some() { names("usr") } else { Vec::new() };
        KeptLayers { directory: templates, root: names("root"), usr }
    }

    /// Variables that make the host's certificates, proxies and package sources usable in a sandbox.
    pub(crate) fn host_environment(
        &self,
        which: HostEnvironment,
        variables: impl Iterator<Item = (String, String)>,
    ) -> std::collections::BTreeMap<String, String> {
        match &self.base {
            Some(base) => host_environment(base, &self.host, which, variables),
            None => std::collections::BTreeMap::new(),
        }
    }
}
