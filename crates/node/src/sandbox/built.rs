//! Opens, lists and removes templates that builds created.

use std::io;
use std::sync::Arc;

use isopod_wire::build::{KeptTemplate, RemoveTemplateError};
use isopod_wire::node::CreateError;

use super::Sandboxes;
use crate::layer_users::LayerUsers;
use crate::pool::{Pool, PoolSize};
use crate::template::{BUILT_PREFIX, Manifest, ManifestError, Template, remove_layer};
use crate::template_pool::{Entry, TemplatePool};

/// The maximum pool of a built template. It is small, because each sandbox may run a start command that uses memory.
const READY: PoolSize = PoolSize { ready: 1, prepared: 1 };
/// How many built templates have a pool. The oldest one is closed first.
const MAX_OPEN: usize = 8;

impl Sandboxes {
    /// The pool of the template with this id.
    pub(super) fn built_template_pool(self: &Arc<Self>, id: &str) -> Result<Arc<TemplatePool>, CreateError> {
        if let Some(Entry::Open(template_pool)) = self.template_pools.get(id) {
            return Ok(template_pool);
        }
        let templates = self.templates_directory();
        let manifest = Manifest::load(&templates, id).map_err(|error| match error {
            ManifestError::Missing(id) => CreateError::UnknownTemplate(id),
            other => CreateError::Failed(other.into()),
        })?;
        let limits = manifest.template.limits;
        let base = self.template_pools.base().template();
        let template =
            Template::built(&base, manifest, &templates).map_err(|error| CreateError::Failed(error.into()))?;
        let size = PoolSize {
            ready: self.pool_size.ready.min(READY.ready),
            prepared: self.pool_size.prepared.min(READY.prepared),
        };
        let pool = Pool::new(Arc::clone(&self.provisioner), Arc::clone(&template), limits, size);
        let ours = TemplatePool::new(id, template, pool, None);
        let template_pool = self.template_pools.open_once(id, Arc::clone(&ours));
        if !self.template_pools.is_closed() && Arc::ptr_eq(&ours, &template_pool) {
            self.use_start_image(&template_pool);
            self.warm_up(&template_pool);
        }
        self.close_surplus(id);
        Ok(template_pool)
    }

    /// Closes the oldest pools if there are too many.
    fn close_surplus(self: &Arc<Self>, newest: &str) {
        let open: Vec<Arc<TemplatePool>> = self
            .template_pools
            .open_pools()
            .into_iter()
            .filter(|template_pool| template_pool.template().manifest().is_some())
            .collect();
        let Some(surplus) = open.len().checked_sub(MAX_OPEN).filter(|surplus| *surplus > 0) else { return };
        let mut by_age: Vec<_> = open.into_iter().filter(|template_pool| template_pool.key != newest).collect();
        by_age.sort_by_key(|template_pool| template_pool.opened_at);
        for template_pool in by_age.into_iter().take(surplus) {
            self.template_pools.forget(&template_pool.key);
            tokio::spawn(async move { template_pool.pool.close().await });
        }
    }

    /// Renews a template after the host's base has changed.
    pub(super) fn renew_built(self: &Arc<Self>, template_pool: &TemplatePool, base: &Template, manifest: &Manifest) {
        if !manifest.on_host {
            return;
        }
        match Template::built(base, manifest.clone(), &self.templates_directory()) {
            Ok(template) => {
                template_pool.replace(template);
                self.use_start_image(template_pool);
                self.warm_up(template_pool);
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, template = manifest.template.id, "could not renew a template");
            }
        }
    }

    pub(crate) async fn built_templates(&self) -> Vec<KeptTemplate> {
        let used: Vec<String> = self.list().await.into_iter().map(|sandbox| sandbox.spec.template).collect();
        let kept = Manifest::list(&self.templates_directory()).into_iter();
        kept.map(|Manifest { template, .. }| KeptTemplate { in_use: used.contains(&template.id), template }).collect()
    }

    pub(crate) async fn remove_template(&self, id: &str) -> Result<(), RemoveTemplateError> {
        let templates = self.templates_directory();
        let not_found = || RemoveTemplateError::NotFound(id.to_owned());
        if !id.starts_with(BUILT_PREFIX) {
            return Err(not_found());
        }
        let failed = |source| RemoveTemplateError::Failed { id: id.to_owned(), source };
        self.start_images.cancel(id).await;
        let manifest = match Manifest::load(&templates, id) {
            Ok(manifest) => Some(manifest),
            Err(ManifestError::Missing(_)) => return Err(not_found()),
            // An unreadable template can still be removed. Its layers go with the next prune.
            Err(_) => None,
        };
        if self.list().await.iter().any(|sandbox| sandbox.spec.template == id) {
            return Err(RemoveTemplateError::InUse(id.to_owned()));
        }
        // Sandboxes of commands, and of other state directories that share the templates.
        let users = LayerUsers::of_templates(&templates).map_err(failed)?;
        if users.have_template(id).map_err(failed)? {
            return Err(RemoveTemplateError::InUse(id.to_owned()));
        }
        let open: Vec<Arc<TemplatePool>> = self
            .template_pools
            .open_pools()
            .into_iter()
            .filter(|template_pool| template_pool.template().name == id)
            .collect();
        for template_pool in &open {
            self.template_pools.forget(&template_pool.key);
            template_pool.pool.close().await;
        }
        let removed_id = id.to_owned();
        let removed = tokio::task::spawn_blocking(move || {
            drop(open);
            Manifest::remove(&templates, &removed_id)?;
            // If another manifest cannot be read, all layers stay, because it may need them.
            let Ok(others) = Manifest::load_all(&templates) else { return Ok(()) };
            let shared: Vec<String> = others.into_iter().flat_map(|other| other.template.layers).collect();
            let layers = manifest.map(|manifest| manifest.template.layers).unwrap_or_default();
            for layer in layers.iter().rev().filter(|layer| is_of_a_build(layer) && !shared.contains(layer)) {
                // If another build uses it right now, it stays until the next prune.
                let _ = remove_layer(&templates, layer);
            }
            Ok::<_, io::Error>(())
        });
        removed.await.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)?;
        self.forget_start_image(id).await;
        Ok(())
    }
}

/// Layers of recipes are shared by all templates.
fn is_of_a_build(layer: &str) -> bool {
    layer.starts_with("l-")
}
