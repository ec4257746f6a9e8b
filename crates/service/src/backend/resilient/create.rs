//! A repeated create never makes two sandboxes.
//!
//! Servers with idempotency keys ensure that themselves. For all others: once an attempt may have taken effect, the
//! next one first looks for a sandbox with the create's label. If one was made after all, duplicates are found and
//! ended.

use super::super::{Backend as _, BackendError, BackendSandbox, CreateSpec, Effect};
use super::tries::Repeat;
use super::{Resilient, Verb};

impl Resilient {
    pub(super) async fn create_once(&self, spec: &CreateSpec) -> Result<BackendSandbox, BackendError> {
        let mut tries = self.tries(Verb::Create, Repeat::Always);
        let mut may_exist = spec.sent_before;
        loop {
            match tries.attempt(self.find_or_create(spec, may_exist)).await {
                Ok(made) if may_exist => return Ok(self.without_duplicates(spec, made).await),
                Ok(made) => return Ok(made),
                Err(error) => {
                    may_exist |= error.effect() == Effect::Unknown;
                    tries.wait_or_fail(error).await?;
                }
            }
        }
    }

    async fn find_or_create(&self, spec: &CreateSpec, may_exist: bool) -> Result<BackendSandbox, BackendError> {
        if may_exist && let Some(found) = earliest(self.inner.list(&spec.key.label()).await?) {
            return Ok(found);
        }
        self.inner.create(spec).await
    }

    /// Keeps the earliest sandbox that the create made. If the search fails, the reconciler ends the others.
    async fn without_duplicates(&self, spec: &CreateSpec, made: BackendSandbox) -> BackendSandbox {
        let Ok(mut all) = self.list(&spec.key.label()).await else { return made };
        let Some(kept) = earliest(all.clone()) else { return made };
        all.retain(|sandbox| sandbox.id != kept.id);
        for duplicate in all {
            tracing::warn!(kept = %kept.id, ended = %duplicate.id, key = %spec.key, "a create made two sandboxes; ending one");
            if let Err(error) = self.destroy(&duplicate.id).await {
                tracing::error!(sandbox = %duplicate.id, error = isopod_wire::error_chain(&error), "could not end a duplicate sandbox");
            }
        }
        kept
    }
}

/// Everyone who searches chooses the same one.
fn earliest(found: Vec<BackendSandbox>) -> Option<BackendSandbox> {
    found
        .into_iter()
        .min_by(|left, right| (left.started_at, left.id.as_str()).cmp(&(right.started_at, right.id.as_str())))
}
