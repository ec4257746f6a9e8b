//! Opening templates: the base at once, others when they are asked for, building what is missing.

use std::sync::{Arc, Weak};
use std::time::Duration;

use isopod_wire::node::CreateError;

use super::Fleet;
use crate::home::HomeKind;
use crate::kind::{Entry, Kind};
use crate::pool::{Pool, PoolSize};
use crate::template::{BASE, BUILT_PREFIX, Interpreter, KeptLayer, Recipe, Step, Template, find_recipe};
use crate::zygote::Zygote;

/// How long a create waits for a template that is being built. Clients give up a little later.
const BUILD_PATIENCE: Duration = Duration::from_secs(45);
/// How long to wait before another zygote is started.
const ZYGOTE_BACKOFF: Duration = Duration::from_secs(1);

impl Fleet {
    /// The template of that name or alias, ready to be used by a team.
    pub(crate) async fn kind(self: &Arc<Self>, name: &str, team: &str) -> Result<Arc<Kind>, CreateError> {
        if name == BASE {
            return Ok(self.kinds.base());
        }
        if name.starts_with(BUILT_PREFIX) {
            return self.built_kind(name, team);
        }
        let recipe = find_recipe(name).ok_or_else(|| CreateError::UnknownTemplate(name.to_owned()))?;
        if let Some(Entry::Open(kind)) = self.kinds.get(recipe.name) {
            return Ok(kind);
        }
        self.start_opening(recipe);
        match tokio::time::timeout(BUILD_PATIENCE, self.wait_until_open(recipe)).await {
            Ok(opened) => opened,
            Err(_) => Err(self.not_ready(recipe)),
        }
    }

    /// Begins to open a template, unless somebody does already.
    pub(crate) fn start_opening(self: &Arc<Self>, recipe: &'static Recipe) {
        if self.kinds.begin_building(recipe.name) {
            let fleet = Arc::downgrade(self);
            tokio::spawn(async move {
                let Some(fleet) = fleet.upgrade() else { return };
                let opened = fleet.find_or_build(recipe).await;
                fleet.open_built(recipe, opened);
            });
        }
    }

    async fn wait_until_open(&self, recipe: &'static Recipe) -> Result<Arc<Kind>, CreateError> {
        loop {
            let changed = self.kinds.changed.notified();
            match self.kinds.get(recipe.name) {
                Some(Entry::Open(kind)) => return Ok(kind),
                Some(Entry::Building(_)) => changed.await,
                None => return Err(self.not_ready(recipe)),
            }
        }
    }

    fn not_ready(&self, recipe: &Recipe) -> CreateError {
        let progress = match self.kinds.get(recipe.name) {
            Some(Entry::Building(Step { done, total, message })) => format!("step {done} of {total}, {message}"),
            _ => "it could not be made; the server's log says why".to_owned(),
        };
        CreateError::TemplateNotReady { template: recipe.name.to_owned(), progress }
    }

    async fn find_or_build(self: &Arc<Self>, recipe: &'static Recipe) -> Result<KeptLayer, String> {
        let base = self.kinds.base().template();
        let id = recipe.layer_id(base.facts());
        let templates = self.workshop.host.state.templates();
        if let Ok(layer) = KeptLayer::open(&templates, &id) {
            return Ok(layer);
        }
        tracing::info!(template = recipe.name, "building a template, which takes a minute or two");
        let fleet = Arc::downgrade(self);
        let on_step = move |step: Step| {
            tracing::info!(template = recipe.name, done = step.done, total = step.total, step.message);
            if let Some(fleet) = Weak::upgrade(&fleet) {
                fleet.kinds.set(recipe.name, Entry::Building(step));
            }
        };
        self.build_layer(recipe, &id, on_step).await.map_err(|error| error.to_string())
    }

    /// A recipe that failed still gives a template, if it is one that can do without.
    fn open_built(self: &Arc<Self>, recipe: &'static Recipe, built: Result<KeptLayer, String>) {
        if self.kinds.is_closed() {
            return;
        }
        let (layer, reduced) = match built {
            Ok(layer) => (Some(Arc::new(layer)), None),
            Err(reason) => {
                tracing::warn!(template = recipe.name, reason, "could not build a template");
                (None, Some(reason))
            }
        };
        if layer.is_none() && !recipe.has_interpreter {
            return self.kinds.forget(recipe.name);
        }
        let interpreter = recipe.has_interpreter.then(Interpreter::default);
        let template = self.kinds.base().template().derive(recipe.name, layer, interpreter);
        let pool = Pool::new(Arc::clone(&self.workshop), Arc::clone(&template), self.limits, self.pool_size);
        let kind = Kind::new(recipe.name, template, pool, reduced);
        self.kinds.set(recipe.name, Entry::Open(Arc::clone(&kind)));
        self.warm_up(&kind);
    }

    /// Lets sandboxes of a template wait for their owners, with warm interpreters if they have one.
    pub(super) fn warm_up(self: &Arc<Self>, kind: &Kind) {
        let template = kind.template();
        if self.has_zygotes(&template) {
            self.start_zygote(kind.key.clone());
        } else {
            kind.pool.start();
        }
    }

    /// One sandbox of a command is not worth a zygote.
    pub(super) fn has_zygotes(&self, template: &Template) -> bool {
        template.takes_zygotes() && *self.workshop.home.kind() == HomeKind::Server && self.pool_size != PoolSize::NONE
    }

    /// Starts a zygote for the present generation of a template. From then on its sandboxes come with a warm interpreter.
    fn start_zygote(self: &Arc<Self>, key: String) {
        let fleet = Arc::downgrade(self);
        let handle = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            let Some(strong) = fleet.upgrade().filter(|fleet| !fleet.kinds.is_closed()) else { return };
            let Some(Entry::Open(kind)) = strong.kinds.get(&key) else { return };
            let cold = kind.template();
            let again = { move || restart_zygote(&handle, fleet, key) };
            match Zygote::start(&strong.workshop, &cold, again) {
                // Too late: the node ends, or the host has changed and another one is on its way. This one goes.
                Ok(_) if strong.kinds.is_closed() || kind.template().generation() != cold.generation() => return,
                Ok(zygote) => kind.replace(cold.with_zygote(zygote)),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, template = cold.name, "no zygote: interpreters start cold");
                }
            }
            kind.pool.start();
        });
    }

    /// Looks whether the host has changed, and begins new generations when it has.
    pub(crate) fn refresh_templates(self: &Arc<Self>) {
        let layers = self.workshop.host.state.layers();
        let base = self.kinds.base();
        let current = base.template();
        if current.is_current(&layers, &self.base) {
            return;
        }
        match Template::base(&layers, &self.base) {
            Ok(fresh) if fresh.generation() != current.generation() => {
                tracing::info!(generation = fresh.generation(), "the host has changed, a new base begins");
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
        for kind in self.kinds.open_kinds() {
            let old = kind.template();
            if let Some(manifest) = old.manifest() {
                self.renew_built(&kind, base, manifest);
                continue;
            }
            let Some(recipe) = find_recipe(&old.name) else { continue };
            let is_for_this_host = old.layer().is_none_or(|layer| layer.id() == recipe.layer_id(base.facts()));
            if !is_for_this_host {
                // Its packages are for another Python. The next create builds it anew.
                self.kinds.forget(recipe.name);
                continue;
            }
            let interpreter = old.interpreter().map(|_| Interpreter::default());
            kind.replace(base.derive(recipe.name, old.layer().cloned(), interpreter));
            self.warm_up(&kind);
        }
    }
}

/// Another one, in a while, if the node still lives.
fn restart_zygote(handle: &tokio::runtime::Handle, fleet: Weak<Fleet>, key: String) {
    handle.spawn(async move {
        tokio::time::sleep(ZYGOTE_BACKOFF).await;
        if let Some(fleet) = fleet.upgrade()
            && let Some(Entry::Open(kind)) = fleet.kinds.get(&key)
            // A zygote that was replaced by a newer one is not missed.
            && kind.template().zygote().is_none()
        {
            tracing::warn!(template = kind.template().name, "the zygote is gone, starting another");
            fleet.start_zygote(key);
        }
    });
}
