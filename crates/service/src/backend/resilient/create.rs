//! A create that is sent again never makes two.
//!
//! Servers that know idempotency keys see to it themselves. For all others: once a try may have been acted on, the next
//! looks for a sandbox with the create's label first; and when one was made after all, its twins are looked for and ended.

use super::super::{Backend as _, BackendError, BackendSandbox, CreateSpec, Effect};
use super::tries::Repeat;
use super::{Resilient, Verb};

impl Resilient {
    pub(super) async fn create_once(&self, spec: &CreateSpec) -> Result<BackendSandbox, BackendError> {
        let mut tries = self.tries(Verb::Create, Repeat::Always);
        let mut may_exist = spec.sent_before;
        loop {
            match tries.attempt(self.find_or_create(spec, may_exist)).await {
                Ok(made) if may_exist => return Ok(self.without_twins(spec, made).await),
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

    /// Keeps the earliest of those that the create made. A look that fails leaves them to whoever compares rows and
    /// sandboxes.
    async fn without_twins(&self, spec: &CreateSpec, made: BackendSandbox) -> BackendSandbox {
        let Ok(mut all) = self.list(&spec.key.label()).await else { return made };
        let Some(kept) = earliest(all.clone()) else { return made };
        all.retain(|sandbox| sandbox.id != kept.id);
        for twin in all {
            tracing::warn!(kept = %kept.id, ended = %twin.id, key = %spec.key, "a create had made two sandboxes");
            if let Err(error) = self.destroy(&twin.id).await {
                tracing::error!(sandbox = %twin.id, error = isopod_wire::error_chain(&error), "a twin could not be ended");
            }
        }
        kept
    }
}

/// Whoever looks chooses the same.
fn earliest(found: Vec<BackendSandbox>) -> Option<BackendSandbox> {
    found
        .into_iter()
        .min_by(|left, right| (left.started_at, left.id.as_str()).cmp(&(right.started_at, right.id.as_str())))
}
