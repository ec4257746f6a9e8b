//! Opens templates: the base at once, others on first use. Builds what is missing.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use isopod_wire::node::CreateError;

use super::{Sandboxes, WantedLayer};
use crate::home::HomeKind;
use crate::pool::{Pool, PoolSize};
use crate::template::{BASE, BUILT_PREFIX, Existing, Layer, Part, Recipe, RecipeLayers, Step, Template, find_recipe};
use crate::template_pool::{Entry, SecondLayerState, TemplatePool};

/// How long a create waits for a template that is being built. The official SDKs give up after 60 seconds, and the server's
/// own limit for a create lies in between.
const BUILD_TIMEOUT: Duration = Duration::from_secs(50);

impl Sandboxes {
    /// The pool of the template with this name or alias.
    pub(crate) async fn template_pool(self: &Arc<Self>, name: &str) -> Result<Arc<TemplatePool>, CreateError> {
        if name == BASE {
            return Ok(self.template_pools.base());
        }
        if name.starts_with(BUILT_PREFIX) {
            return self.built_template_pool(name);
        }
        let recipe = find_recipe(name).ok_or_else(|| CreateError::UnknownTemplate(name.to_owned()))?;
        if let Some(Entry::Open(template_pool)) = self.template_pools.get(recipe.name) {
            return Ok(template_pool);
        }
        self.start_opening(recipe);
        match tokio::time::timeout(BUILD_TIMEOUT, self.wait_until_open(recipe, |_| {})).await {
            Ok(opened) => opened,
            Err(_) => Err(self.not_ready(recipe)),
        }
    }

    /// Starts opening a template, unless that is already under way.
    pub(crate) fn start_opening(self: &Arc<Self>, recipe: &'static Recipe) {
        if self.template_pools.begin_building(recipe.name) {
            let sandboxes = Arc::downgrade(self);
            tokio::spawn(async move {
                let Some(sandboxes) = sandboxes.upgrade() else { return };
                sandboxes.open_recipe(recipe).await;
            });
        }
    }

    /// Waits for whoever opens it. `on_step` is told each step of its recipe, if that must run.
    pub(crate) async fn wait_until_open(
        &self,
        recipe: &'static Recipe,
        on_step: impl Fn(Step),
    ) -> Result<Arc<TemplatePool>, CreateError> {
        let mut told = None;
        loop {
            let changed = self.template_pools.changed.notified();
            match self.template_pools.get(recipe.name) {
                Some(Entry::Open(template_pool)) => return Ok(template_pool),
                Some(Entry::Building(step)) => {
                    // Another template may be what has changed.
                    if step.total > 0 && told.as_ref() != Some(&step) {
                        on_step(step.clone());
                        told = Some(step);
                    }
                    changed.await;
                }
                None => return Err(self.not_ready(recipe)),
            }
        }
    }

    fn not_ready(&self, recipe: &Recipe) -> CreateError {
        let progress = match self.template_pools.get(recipe.name) {
            Some(Entry::Building(Step { done, total, message })) => format!("step {done} of {total}, {message}"),
            _ => "it could not be built; see the server's log".to_owned(),
        };
        CreateError::TemplateNotReady { template: recipe.name.to_owned(), progress }
    }

    /// Opens the template of a recipe as soon as it has the core, and then adds the rest.
    async fn open_recipe(self: &Arc<Self>, recipe: &'static Recipe) {
        let layers = recipe.layers(self.template_pools.base().template().facts(), self.state_path());
        let top = layers.more.as_ref().unwrap_or(&layers.core);
        if let Ok(stack) = Layer::open_stack(&self.templates_directory(), top) {
            self.open_built(recipe, Ok(stack), SecondLayerState::Complete);
            return;
        }
        let core = match self.build_core(recipe, &layers).await {
            Ok(core) => core,
            Err(reason) => return self.open_built(recipe, Err(reason), SecondLayerState::Complete),
        };
        let Some(more) = &layers.more else {
            return self.open_built(recipe, Ok(vec![core]), SecondLayerState::Complete);
        };
        self.open_built(recipe, Ok(vec![Arc::clone(&core)]), SecondLayerState::Building);
        let wanted = WantedLayer { recipe, part: Part::More, id: more, below: Some(&core) };
        let on_step =
            |step: Step| tracing::debug!(template = recipe.name, done = step.done, total = step.total, step.message);
        let built = self.build_layer(&wanted, Existing::Take, on_step).await;
        self.add_more(recipe, &core, built.map_err(|error| error.to_string()));
    }

    /// Puts the second layer of a recipe on top of the core. Sandboxes that exist stay as they are.
    fn add_more(self: &Arc<Self>, recipe: &'static Recipe, core: &Arc<Layer>, built: Result<Layer, String>) {
        let Some(Entry::Open(template_pool)) = self.template_pools.get(recipe.name) else { return };
        match built {
            // Otherwise the host has another Python since, and another core is being built.
            Ok(more) if template_pool.template().layers().iter().any(|layer| layer.id() == core.id()) => {
                let stack = vec![Arc::new(more), Arc::clone(core)];
                let interpreter = recipe.new_interpreter();
                template_pool.replace(self.template_pools.base().template().derive(recipe.name, stack, interpreter));
                template_pool.set_more(SecondLayerState::Complete);
                tracing::info!(template = recipe.name, "the template is complete");
                self.warm_up(&template_pool);
            }
            Ok(_) => {}
            Err(reason) => {
                tracing::warn!(template = recipe.name, reason, "could not add the rest of a template");
                template_pool.set_more(SecondLayerState::Failed(reason));
            }
        }
        self.template_pools.changed.notify_waiters();
    }

    async fn build_core(
        self: &Arc<Self>,
        recipe: &'static Recipe,
        layers: &RecipeLayers,
    ) -> Result<Arc<Layer>, String> {
        let is_new = Layer::open(&self.templates_directory(), &layers.core).is_err();
        if is_new {
            tracing::info!(template = recipe.name, "building a template, which takes a while");
        }
        let began = Instant::now();
        let sandboxes = Arc::downgrade(self);
        let on_step = move |step: Step| {
            tracing::debug!(template = recipe.name, done = step.done, total = step.total, step.message);
            if let Some(sandboxes) = Weak::upgrade(&sandboxes) {
                sandboxes.template_pools.set(recipe.name, Entry::Building(step));
            }
        };
        let built = self.find_or_build_core(recipe, layers, Existing::Take, on_step).await;
        let core = built.map_err(|error| error.to_string())?;
        if is_new {
            tracing::info!(template = recipe.name, seconds = began.elapsed().as_secs(), "built a template");
        }
        Ok(core)
    }

    /// Opens the template of a recipe. If the recipe failed, a template with Python's interpreter is still usable without
    /// its layer.
    fn open_built(
        self: &Arc<Self>,
        recipe: &'static Recipe,
        built: Result<Vec<Arc<Layer>>, String>,
        more: SecondLayerState,
    ) {
        if self.template_pools.is_closed() {
            return;
        }
        let (layers, reduced) = match built {
            Ok(layers) => (layers, None),
            Err(reason) => {
                tracing::warn!(template = recipe.name, reason, "could not build a template");
                (Vec::new(), Some(reason))
            }
        };
        if layers.is_empty() && !recipe.works_without_layers() {
            return self.template_pools.forget(recipe.name);
        }
        let interpreter = recipe.new_interpreter();
        let template = self.template_pools.base().template().derive(recipe.name, layers, interpreter);
        let pool = Pool::new(Arc::clone(&self.provisioner), Arc::clone(&template), self.limits, self.pool_size);
        let template_pool = TemplatePool::new(recipe.name, template, pool, reduced);
        template_pool.set_more(more);
        self.template_pools.set(recipe.name, Entry::Open(Arc::clone(&template_pool)));
        self.warm_up(&template_pool);
    }

    /// Fills the pool of a template, with warm interpreters if the template has one.
    pub(super) fn warm_up(self: &Arc<Self>, template_pool: &TemplatePool) {
        let template = template_pool.template();
        if self.has_zygotes(&template) {
            self.start_zygote(template_pool.key.clone());
        } else {
            template_pool.pool.start();
        }
    }

    /// A command with a single sandbox does not need a zygote.
    pub(super) fn has_zygotes(&self, template: &Template) -> bool {
        template.takes_zygotes()
            && *self.provisioner.home.kind() == HomeKind::Server
            && self.pool_size != PoolSize::NONE
    }

    /// Starts a zygote for the current generation of a template. From then on, its sandboxes get a warm interpreter.
    fn start_zygote(self: &Arc<Self>, key: String) {
        let sandboxes = Arc::downgrade(self);
        let handle = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            let Some(strong) = sandboxes.upgrade().filter(|sandboxes| !sandboxes.template_pools.is_closed()) else {
                return;
            };
            let Some(Entry::Open(template_pool)) = strong.template_pools.get(&key) else { return };
            let cold = template_pool.template();
            let restart = Restart { handle, sandboxes, key, generation: cold.generation().to_owned() };
            let (on_end, began) = (restart.clone(), Instant::now());
            match strong.provisioner.start_zygote(&cold, move || on_end.after(began.elapsed())) {
                // Too late: the node ends, or the host has changed and another one is on its way. This one goes.
                _ if strong.template_pools.is_closed()
                    || template_pool.template().generation() != cold.generation() =>
                {
                    return;
                }
                Ok(zygote) => template_pool.replace(cold.with_zygote(zygote)),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, template = cold.name, "could not start a zygote; interpreters start cold");
                    restart.after(Duration::ZERO);
                }
            }
            template_pool.pool.start();
        });
    }

    /// Checks whether the host has changed, and creates new generations if it has.
    pub(crate) fn refresh_templates(self: &Arc<Self>) {
        let layers = self.provisioner.host.state.layers();
        let base = self.template_pools.base();
        let current = base.template();
        if current.is_current(&layers, &self.base) {
            return;
        }
        match Template::base(&layers, &self.base) {
            Ok(fresh) if fresh.generation() != current.generation() => {
                tracing::info!(generation = fresh.generation(), "the host has changed; using a new base");
                base.replace(Arc::clone(&fresh));
                self.renew_derived(&fresh);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "could not renew the base template");
            }
        }
    }

    fn renew_derived(self: &Arc<Self>, base: &Template) {
        for template_pool in self.template_pools.open_pools() {
            let old = template_pool.template();
            if let Some(manifest) = old.manifest() {
                self.renew_built(&template_pool, base, manifest);
                continue;
            }
            let Some(recipe) = find_recipe(&old.name) else { continue };
            let core = recipe.layers(base.facts(), self.state_path()).core;
            let is_for_this_host = old.layers().last().is_none_or(|layer| layer.id() == core);
            if !is_for_this_host {
                // Its packages are for another Python. The next create builds it again.
                self.template_pools.forget(recipe.name);
                continue;
            }
            let interpreter = recipe.new_interpreter();
            template_pool.replace(base.derive(recipe.name, old.layers().to_vec(), interpreter));
            self.warm_up(&template_pool);
        }
    }
}

/// What is needed to start another zygote when one is gone.
#[derive(Clone)]
struct Restart {
    handle: tokio::runtime::Handle,
    sandboxes: Weak<Sandboxes>,
    key: String,
    /// What its interpreters are for.
    generation: String,
}

impl Restart {
    /// In a while, if the node still lives. One that dies again and again is waited for ever longer. One of an earlier
    /// generation was ended because the host has changed; whoever noticed that has started its successor.
    fn after(self, lived: Duration) {
        let Self { handle, sandboxes, key, generation } = self;
        handle.clone().spawn(async move {
            let Some(template_pool) = open_pool(&sandboxes, &key) else { return };
            if template_pool.template().generation() != generation {
                return;
            }
            let wait = template_pool.zygote_backoff(lived);
            let template = template_pool.template().name.clone();
            tracing::warn!(template, wait = wait.as_secs(), "the zygote is gone; starting another after a wait");
            drop(template_pool);
            tokio::time::sleep(wait).await;
            // A zygote that was replaced by a newer one needs no successor.
            if open_pool(&sandboxes, &key).is_some_and(|template_pool| template_pool.template().zygote().is_none())
                && let Some(sandboxes) = sandboxes.upgrade()
            {
                sandboxes.start_zygote(key);
            }
        });
    }
}

fn open_pool(sandboxes: &Weak<Sandboxes>, key: &str) -> Option<Arc<TemplatePool>> {
    match sandboxes.upgrade()?.template_pools.get(key)? {
        Entry::Open(template_pool) => Some(template_pool),
        Entry::Building(_) => None,
    }
}
