//! Templates that builds left: opening them, telling of them, removing them.

use std::io;
use std::sync::Arc;

use isopod_wire::build::{KeptTemplate, RemoveTemplateError};
use isopod_wire::node::CreateError;

use super::Fleet;
use crate::kind::{Entry, Kind};
use crate::pool::{Pool, PoolSize};
use crate::template::{BUILT_PREFIX, Manifest, ManifestError, Template, remove_layer};

/// How many sandboxes of a built template wait, at most: each may have a start command that takes memory.
const READY: PoolSize = PoolSize { ready: 1, prepared: 1 };
/// How many built templates have sandboxes that wait. The one that was opened first makes way.
const MOST_OPEN: usize = 8;

impl Fleet {
    /// The template with this id, ready to be used by a team.
    pub(super) fn built_kind(self: &Arc<Self>, id: &str, team: &str) -> Result<Arc<Kind>, CreateError> {
        let of_team = key_for(id, team);
        for key in [id, &of_team] {
            if let Some(Entry::Open(kind)) = self.kinds.get(key) {
                return Ok(kind);
            }
        }
        let templates = self.templates_directory();
        let manifest = Manifest::load(&templates, id).map_err(|error| match error {
            ManifestError::Missing(id) => CreateError::UnknownTemplate(id),
            other => CreateError::Failed(other.into()),
        })?;
        let limits = manifest.template.limits;
        let base = self.kinds.base().template();
        let template =
            Template::built(&base, manifest, &templates).map_err(|error| CreateError::Failed(error.into()))?;
        let size = PoolSize {
            ready: self.pool_size.ready.min(READY.ready),
            prepared: self.pool_size.prepared.min(READY.prepared),
        };
        let pool = Pool::new(Arc::clone(&self.workshop), Arc::clone(&template), limits, size);
        // Its zygote runs what the template's author wrote, and goes into every sandbox of it: so none serves two teams.
        let key = if self.has_zygotes(&template) { of_team.as_str() } else { id };
        let ours = Kind::new(key, template, pool, None);
        let kind = self.kinds.open_once(key, Arc::clone(&ours));
        if !self.kinds.is_closed() && Arc::ptr_eq(&ours, &kind) {
            self.warm_up(&kind);
        }
        self.close_surplus(key);
        Ok(kind)
    }

    /// Keeps the number of templates with sandboxes that wait in bounds.
    fn close_surplus(self: &Arc<Self>, newest: &str) {
        let open: Vec<Arc<Kind>> =
            self.kinds.open_kinds().into_iter().filter(|kind| kind.template().manifest().is_some()).collect();
        let Some(surplus) = open.len().checked_sub(MOST_OPEN).filter(|surplus| *surplus > 0) else { return };
        let mut by_age: Vec<_> = open.into_iter().filter(|kind| kind.key != newest).collect();
        by_age.sort_by_key(|kind| kind.opened_at);
        for kind in by_age.into_iter().take(surplus) {
            self.kinds.forget(&kind.key);
            tokio::spawn(async move { kind.pool.close().await });
        }
    }

    /// On the base of a host that has changed.
    pub(super) fn renew_built(self: &Arc<Self>, kind: &Kind, base: &Template, manifest: &Manifest) {
        if !manifest.on_host {
            return;
        }
        match Template::built(base, manifest.clone(), &self.templates_directory()) {
            Ok(template) => {
                kind.replace(template);
                self.warm_up(kind);
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
        let manifest = match Manifest::load(&templates, id) {
            Ok(manifest) => Some(manifest),
            Err(ManifestError::Missing(_)) => return Err(not_found()),
            // What cannot be read can still be removed; its layers go with the next prune.
            Err(_) => None,
        };
        if self.list().await.iter().any(|sandbox| sandbox.spec.template == id) {
            return Err(RemoveTemplateError::InUse(id.to_owned()));
        }
        let open: Vec<Arc<Kind>> =
            self.kinds.open_kinds().into_iter().filter(|kind| kind.template().name == id).collect();
        for kind in &open {
            self.kinds.forget(&kind.key);
            kind.pool.close().await;
        }
        let id = id.to_owned();
        let removed = tokio::task::spawn_blocking(move || {
            // A zygote ends with the last who knows it; it stands on these layers.
            drop(open);
            Manifest::remove(&templates, &id)?;
            let shared: Vec<String> =
                Manifest::list(&templates).into_iter().flat_map(|other| other.template.layers).collect();
            let layers = manifest.map(|manifest| manifest.template.layers).unwrap_or_default();
            for layer in layers.iter().rev().filter(|layer| is_of_a_build(layer) && !shared.contains(layer)) {
                // Somebody builds on it right now: it stays until the next prune.
                let _ = remove_layer(&templates, layer);
            }
            Ok::<_, io::Error>(())
        });
        removed.await.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)
    }
}

/// What a template is found by where each team has its own.
pub(super) fn key_for(id: &str, team: &str) -> String {
    format!("{id} {team}")
}

/// Layers of recipes serve everybody.
fn is_of_a_build(layer: &str) -> bool {
    layer.starts_with("l-")
}
