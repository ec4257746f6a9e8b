//! What a build starts from: this host, an image, a template, or nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use isopod_image::Reference;
use isopod_image::unpack::Bounds;
use isopod_wire::build::RegistryAuth;
use isopod_wire::node::CreateError;

use super::Build;
use super::host_base::{is_named_by, version_of};
use super::image_setup;
use super::stack::{Settings, Stack};
use super::step::{Action, digest_of};
use super::step_error::StepError;
use crate::template::{BASE, BUILT_PREFIX, Layer, Manifest, Template, facts_key, find_recipe, make_layer};
use crate::template_pool::{Entry, SecondLayerState, TemplatePool};

/// The name of the empty image.
const SCRATCH: &str = "scratch";
const SCRATCH_LAYER: &str = "l-scratch1";

/// A substitute, made from this host, for a well-known image.
struct Substitute {
    /// The template that replaces the image.
    template: &'static str,
    /// A description of its contents.
    has: String,
    /// Whether the image's name asks for just that.
    is_named: bool,
}

impl Build<'_> {
    /// Finds an image: in the store, in a registry, or made from this host.
    pub(super) async fn image(
        &mut self,
        text: &str,
        auth: Option<&RegistryAuth>,
    ) -> Result<(Stack, Settings), StepError> {
        if text == SCRATCH {
            return Ok((self.scratch_stack()?, Settings::of_docker()));
        }
        // No well-known image has one of these names.
        if text == BASE || find_recipe(text).is_some() {
            return Ok((self.template(text).await?.0, Settings::of_docker()));
        }
        let reference: Reference =
            text.parse().map_err(|error| StepError::invalid(format!("{text:?} is not an image reference: {error}")))?;
        match self.stored_image(&reference, auth).await {
            Ok(found) => Ok(found),
            Err(reason) => match self.substitute(&reference) {
                Some(substitute) if !substitute.is_named && !self.spec.allow_host_base => {
                    Err(StepError::image(format!(
                        "could not get the image {reference}: {reason}. This host could stand in for it with {}, which \
                         is not what the name asks for. Add the image with `isopod image pull` or `import`, or configure \
                         a mirror; to use the host's version, build with --allow-host-base or set images.allow_host_base",
                        substitute.has
                    )))
                }
                Some(substitute) => {
                    let message = format!(
                        "cannot get {reference} ({reason}); using this host's files instead, with {}",
                        substitute.has
                    );
                    self.log.warn(message).await;
                    let (stack, _) = self.template(substitute.template).await?;
                    Ok((stack, Settings::of_docker()))
                }
                None => Err(StepError::image(format!("could not get the image {reference}: {reason}"))),
            },
        }
    }

    /// A template of this node, by name or id.
    pub(super) async fn template(&mut self, name: &str) -> Result<(Stack, Settings), StepError> {
        if name.starts_with(BUILT_PREFIX) {
            return self.built_template(name);
        }
        let mut stack = self.host_stack();
        let settings = Settings {
            env: BTreeMap::new(),
            user: "user".to_owned(),
            workdir: "/home/user".to_owned(),
            ..Settings::of_docker()
        };
        if name == BASE {
            return Ok((stack, settings));
        }
        let recipe = find_recipe(name).ok_or_else(|| StepError::invalid(format!("there is no template {name:?}")))?;
        let template_pool = loop {
            match self.sandboxes.template_pool(recipe.name).await {
                Ok(template_pool) => break template_pool,
                // It is being built. The time limit of this build applies.
                Err(CreateError::TemplateNotReady { progress, .. })
                    if matches!(self.sandboxes.template_pools.get(recipe.name), Some(Entry::Building(_))) =>
                {
                    self.log.info(format!("template {name} is being built: {progress}")).await;
                }
                Err(error) => return Err(StepError::image(format!("cannot get template {name}: {error}"))),
            }
        };
        if let Some(reason) = &template_pool.reduced {
            return Err(StepError::image(format!("template {name} is not complete: {reason}")));
        }
        let template = self.complete(recipe.name, &template_pool).await?;
        for layer in template.layers().iter().rev() {
            stack.chain = digest_of([stack.chain.as_str(), layer.id()]);
            stack.layers.push(Arc::clone(layer));
        }
        stack.has_interpreter = template.interpreter().is_some();
        Ok((stack, settings))
    }

    /// Waits for the second layer of a recipe, so that a build always has the same layers below it.
    async fn complete(&self, name: &str, template_pool: &TemplatePool) -> Result<Arc<Template>, StepError> {
        let mut was_told = false;
        loop {
            let changed = self.sandboxes.template_pools.changed.notified();
            match template_pool.more() {
                SecondLayerState::Complete => return Ok(template_pool.template()),
                SecondLayerState::Failed(reason) => {
                    return Err(StepError::image(format!("template {name} is not complete: {reason}")));
                }
                SecondLayerState::Building if !was_told => {
                    self.log.info(format!("waiting for the rest of template {name}")).await;
                    was_told = true;
                }
                SecondLayerState::Building => changed.await,
            }
        }
    }

    /// Adds what sandboxes need if the stack does not start from the host's base, which already has it.
    pub(super) async fn set_up_image(&mut self, stack: &mut Stack) -> Result<(), StepError> {
        if stack.on_host {
            return Ok(());
        }
        self.log.info("adding the user of the sandbox").await;
        self.step(stack, &["PROVISION", image_setup::VERSION], false, Action::SetUpImage).await
    }

    fn host_stack(&self) -> Stack {
        let base = self.sandboxes.template_pools.base().template();
        let chain = digest_of(["host", &facts_key(base.facts())]);
        let layers = Vec::new();
        Stack { on_host: true, has_interpreter: false, layers, bytes: 0, chain, has_others_layers: false }
    }

    /// An empty stack, except for the mount points of a sandbox's own directories. Images are stacked on it too,
    /// because they may lack them.
    pub(super) fn scratch_stack(&self) -> Result<Stack, StepError> {
        let templates = self.sandboxes.templates_directory();
        let layer = Layer::open(&templates, SCRATCH_LAYER).or_else(|_| {
            make_layer(&templates, SCRATCH_LAYER, &self.work.quota(Bounds::default()), |root| {
                for name in ["dev", "etc", "proc", "run", "sys", "tmp"] {
                    fs::create_dir(root.join(name))?;
                }
                fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))
            })
        });
        let layer = layer.map_err(|error| StepError::internal("create an empty layer", error))?;
        let layers = vec![Arc::new(layer)];
        let chain = digest_of([SCRATCH]);
        Ok(Stack { on_host: false, has_interpreter: false, layers, bytes: 0, chain, has_others_layers: false })
    }

    fn built_template(&self, id: &str) -> Result<(Stack, Settings), StepError> {
        let templates = self.sandboxes.templates_directory();
        let manifest =
            Manifest::load(&templates, id).map_err(|error| StepError::internal("open the template", error))?;
        let has_others_layers = manifest.has_others_layers || manifest.scope != self.spec.cache_scope;
        let Manifest { template, on_host, has_interpreter, chain, onbuild, container, .. } = manifest;
        let open = |id: &String| Layer::open(&templates, id).map(Arc::new);
        let layers: Result<Vec<_>, _> = template.layers.iter().map(open).collect();
        let layers = layers.map_err(|error| StepError::internal("open the template's layers", error))?;
        let settings = Settings {
            env: template.env,
            user: template.user,
            workdir: template.workdir,
            onbuild,
            container,
            ..Settings::of_docker()
        };
        let bytes = template.size.0;
        Ok((Stack { on_host, has_interpreter, layers, bytes, chain, has_others_layers }, settings))
    }

    /// The substitute for a well-known image that this host can offer.
    fn substitute(&self, reference: &Reference) -> Option<Substitute> {
        let base = self.sandboxes.template_pools.base().template();
        let facts = base.facts();
        let python = facts.python.as_deref().unwrap_or("none");
        let node = facts.node.as_deref();
        let is_named = |version: Option<&str>| is_named_by(reference, version, &facts.system);
        let on_base = |has: String, is_named: bool| Some(Substitute { template: BASE, has, is_named });
        match (reference.registry(), reference.repository()) {
            // These are E2B's own names for what every sandbox has.
            ("docker.io", "e2bdev/base") => on_base(facts.system.clone(), true),
            ("docker.io", "library/debian" | "library/ubuntu" | "library/buildpack-deps") => {
                on_base(facts.system.clone(), is_named(version_of(&facts.system)))
            }
            ("docker.io", "library/python") => {
                on_base(format!("{} and Python {python}", facts.system), is_named(facts.python.as_deref()))
            }
            ("docker.io", "library/node") => match node {
                Some(node) if facts.npm => {
                    on_base(format!("{} and Node.js {node}", facts.system), is_named(Some(node)))
                }
                _ => {
                    let has = format!("{} and its Node.js", facts.system);
                    Some(Substitute { template: "nodejs", has, is_named: is_named(None) })
                }
            },
            ("docker.io", "e2bdev/code-interpreter") => {
                let has = "the packages of code-interpreter-v1".to_owned();
                Some(Substitute { template: "code-interpreter-v1", has, is_named: true })
            }
            _ => None,
        }
    }
}
