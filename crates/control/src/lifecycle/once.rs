//! Idempotent create requests: the first attempt with a key creates the sandbox, later ones find it.

use std::sync::Arc;

use isopod_store::{Claim, Resource, StoreError, TeamId};
use isopod_wire::SandboxId;

use super::create::CreateRefusal;
use super::fleet::Fleet;
use super::handle::Sandbox;

/// A create request that may have been sent before.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub team: TeamId,
    pub key: String,
    /// The hash of the whole request.
    pub request: [u8; 32],
}

/// Why no sandbox is returned.
#[derive(Debug, thiserror::Error)]
pub enum OnceRefusal {
    #[error(transparent)]
    Create(#[from] CreateRefusal),
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// The sandbox that was created with this key has ended.
    #[error("sandbox {0}, which was created with this Idempotency-Key, has ended")]
    Ended(SandboxId),
    #[error("a request with this Idempotency-Key is in progress")]
    InProgress,
    #[error("this Idempotency-Key was used for another request")]
    Mismatch,
}

impl Fleet {
    /// Creates the sandbox with `making` on the first attempt, and finds it on later ones. `making` must record the key
    /// with the sandbox.
    pub async fn once(
        self: &Arc<Self>,
        attempt: Attempt,
        making: impl Future<Output = Result<Arc<Sandbox>, CreateRefusal>> + Send + 'static,
    ) -> Result<Arc<Sandbox>, OnceRefusal> {
        match self.store.claim_key(&attempt.team, &attempt.key, &attempt.request).await? {
            Claim::First => {
                let fleet = Arc::clone(self);
                // In a task of its own, so that a client that disconnects does not leave its key half used.
                let making = tokio::spawn(async move { fleet.first(attempt, making).await });
                making.await.unwrap_or(Err(OnceRefusal::Create(CreateRefusal::Aborted)))
            }
            Claim::Done(id) => match self.find_of(&attempt.team, &id) {
                Some(sandbox) => Ok(sandbox),
                None => {
                    self.store.check_here(Resource::Sandbox(&id, Some(&attempt.team))).await?;
                    Err(OnceRefusal::Ended(id))
                }
            },
            Claim::Unfinished => Err(OnceRefusal::InProgress),
            Claim::Mismatch => Err(OnceRefusal::Mismatch),
        }
    }

    async fn first(
        &self,
        attempt: Attempt,
        making: impl Future<Output = Result<Arc<Sandbox>, CreateRefusal>>,
    ) -> Result<Arc<Sandbox>, OnceRefusal> {
        match making.await {
            Ok(sandbox) => {
                self.store.finish_key(&attempt.team, &attempt.key, sandbox.id()).await?;
                Ok(sandbox)
            }
            Err(refusal) => {
                self.store.release_key(&attempt.team, &attempt.key).await?;
                Err(refusal.into())
            }
        }
    }
}
