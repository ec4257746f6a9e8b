//! The limits of teams that have a tier or limits of their own. They are read for each create and each resume, so that
//! a change counts at once, also one that another server made.

use isopod_store::service::{EffectiveQuota, Tiers};
use isopod_store::{StoreError, TeamId};

use super::drain::Draining;
use super::fleet::Fleet;
use super::team_slots::{TeamLimitReached, TeamSlot};

/// Why a sandbox may not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlotRefusal {
    #[error(transparent)]
    Limit(#[from] TeamLimitReached),
    #[error(transparent)]
    Draining(#[from] Draining),
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl Fleet {
    /// The tiers of the settings.
    pub fn tiers(&self) -> &Tiers {
        &self.settings.tiers
    }

    /// The limits of a team. `None` if it has neither a tier nor limits of its own, so that the server's apply.
    pub async fn quota_of(&self, team: &TeamId) -> Result<Option<EffectiveQuota>, StoreError> {
        Ok(self.settings.tiers.limits_of(&self.store.team_quota(team).await?))
    }

    /// The number of the team's sandboxes that run on this server.
    pub fn running_of(&self, team: &TeamId) -> u32 {
        self.slots.taken(team)
    }

    pub(super) async fn slot_for_create(&self, team: &TeamId) -> Result<TeamSlot, SlotRefusal> {
        self.check_admits()?;
        let concurrent = self.concurrent_of(team).await?;
        Ok(self.slots.take_for_create(team, concurrent)?)
    }

    /// Takes a slot for a create that waits, which takes its token of the rate limit only when it begins.
    pub(super) async fn slot_for_waiting(&self, team: &TeamId) -> Result<TeamSlot, SlotRefusal> {
        self.slot_for_resume(team).await
    }

    pub(super) async fn slot_for_resume(&self, team: &TeamId) -> Result<TeamSlot, SlotRefusal> {
        self.check_admits()?;
        let concurrent = self.concurrent_of(team).await?;
        Ok(self.slots.take_for_resume(team, concurrent)?)
    }

    async fn concurrent_of(&self, team: &TeamId) -> Result<Option<u32>, StoreError> {
        Ok(self.quota_of(team).await?.and_then(|quota| quota.limits.concurrent))
    }
}
