//! The quotas of a team: what an admin set for it, what applies to it, and how much of it is used.

use isopod_store::TeamId;
use isopod_store::service::{QuotaLimits, QuotaUsage, Quotas, TeamQuota};

use super::{Service, ServiceError};

/// The quota of one team.
#[derive(Clone, Debug)]
pub(crate) struct QuotaReport {
    pub(crate) team: TeamId,
    /// What an admin set.
    pub(crate) own: TeamQuota,
    /// The tier that counts, if one does.
    pub(crate) tier: Option<String>,
    /// The limits that count.
    pub(crate) limits: QuotaLimits,
    pub(crate) used: QuotaUsage,
    /// The team's sandboxes that run on this server, by whatever API they were created.
    pub(crate) running: u32,
}

impl Service {
    /// The limits that apply to a sandbox of this team.
    pub(crate) async fn quotas_of(&self, team: &TeamId) -> Result<Quotas, ServiceError> {
        let common = self.config.quotas;
        let own = self.fleet.quota_of(team).await?;
        Ok(Quotas { team: own.map_or(common.team, |own| own.limits), ..common })
    }

    pub(crate) async fn quota(&self, team: &TeamId) -> Result<QuotaReport, ServiceError> {
        let own = self.store.team_quota(team).await?;
        self.report(team.clone(), own).await
    }

    /// The quotas of all teams.
    pub(crate) async fn all_quotas(&self) -> Result<Vec<QuotaReport>, ServiceError> {
        let mut reports = Vec::new();
        for (team, own) in self.store.team_quotas().await? {
            reports.push(self.report(team, own).await?);
        }
        Ok(reports)
    }

    /// Replaces what was set for a team.
    pub(crate) async fn set_quota(&self, team: &TeamId, own: TeamQuota) -> Result<QuotaReport, ServiceError> {
        self.check_tier(own.tier.as_deref())?;
        if !self.store.set_team_quota(team, &own).await? {
            return Err(ServiceError::not_found("team", &team.0));
        }
        self.report(team.clone(), own).await
    }

    /// Removes what was set for a team.
    pub(crate) async fn reset_quota(&self, team: &TeamId) -> Result<QuotaReport, ServiceError> {
        self.check_team(team).await?;
        self.store.remove_team_quota(team).await?;
        self.quota(team).await
    }

    pub(crate) async fn check_team(&self, team: &TeamId) -> Result<(), ServiceError> {
        match self.store.find_team(&team.0).await? {
            Some(_) => Ok(()),
            None => Err(ServiceError::not_found("team", &team.0)),
        }
    }

    /// Logs teams whose tier the settings no longer have.
    pub(crate) async fn warn_of_unknown_tiers(&self) -> Result<(), ServiceError> {
        let known = &self.fleet.tiers().limits;
        for (team, own) in self.store.team_quotas().await? {
            if let Some(tier) = own.tier.filter(|tier| !known.contains_key(tier)) {
                tracing::warn!(team = team.0, tier, "the settings have no such tier: the default applies to the team");
            }
        }
        Ok(())
    }

    async fn report(&self, team: TeamId, own: TeamQuota) -> Result<QuotaReport, ServiceError> {
        let (tier, limits) = match self.fleet.tiers().limits_of(&own) {
            Some(found) => (found.tier, found.limits),
            None => (None, self.config.quotas.team),
        };
        let used = self.store.quota_usage(&team).await?;
        let running = self.fleet.running_of(&team);
        Ok(QuotaReport { team, own, tier, limits, used, running })
    }

    fn check_tier(&self, tier: Option<&str>) -> Result<(), ServiceError> {
        let known = &self.fleet.tiers().limits;
        let Some(tier) = tier.filter(|tier| !known.contains_key(*tier)) else { return Ok(()) };
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        let there = match names.is_empty() {
            true => "have no tiers: add [quotas.tiers.NAME]".to_owned(),
            false => format!("have these tiers: {}", names.join(", ")),
        };
        let shown: String = tier.chars().take(64).collect();
        Err(ServiceError::invalid(format!("there is no tier {shown:?}; the server's settings {there}")))
    }
}
