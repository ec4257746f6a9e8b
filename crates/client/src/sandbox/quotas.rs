//! Quotas of teams, on Isopod's servers. A team reads its own; an admin's key reads and sets those of all teams.

use http::Method;
use isopod_guest_client::transport::encode;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::{ApiError, Client};

/// Limits of a team. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaLimits {
    /// Sandboxes at the same time.
    pub concurrent: Option<u32>,
    /// Creates per hour.
    pub per_hour: Option<u32>,
    /// CPU time per day, in seconds.
    pub cpu_seconds_per_day: Option<u32>,
    /// Memory of all running sandboxes, in MiB.
    pub memory_mb: Option<u32>,
}

/// What an admin sets for a team.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TeamQuota {
    /// A tier of the server's settings.
    pub tier: Option<String>,
    /// Limits that replace those of the tier.
    #[serde(default)]
    pub limits: QuotaLimits,
}

/// How much of its limits a team uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaUsage {
    /// Sandboxes that run.
    pub concurrent: i64,
    /// Sandboxes created in the last hour.
    pub per_hour: i64,
    /// CPU time in the last day, in seconds.
    pub cpu_seconds_per_day: i64,
    /// Memory of the sandboxes that run, in MiB.
    pub memory_mb: i64,
}

/// The quota of a team.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaReport {
    /// The team.
    pub team_id: String,
    /// The tier that counts.
    pub tier: Option<String>,
    /// The limits that count.
    pub limits: QuotaLimits,
    /// What an admin set.
    pub own: TeamQuota,
    /// How much is used.
    pub used: QuotaUsage,
    /// Sandboxes of the team that run on this server, also those of the E2B API.
    pub running: u32,
}

/// A tier of the server's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Its limits.
    pub limits: QuotaLimits,
}

/// The tiers of the server's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tiers {
    /// The tier of teams that have none.
    pub default_tier: Option<String>,
    /// All tiers, by their names.
    pub tiers: Vec<Tier>,
}

#[derive(Deserialize)]
struct QuotaList {
    quotas: Vec<QuotaReport>,
}

impl Client {
    /// The quota of this key's team.
    ///
    /// # Errors
    /// If the server has no quotas.
    pub async fn quota(&self) -> Result<QuotaReport, ApiError> {
        self.call(Call::new(Method::GET, "/api/v1/quota")).await?.parse()
    }

    /// The quotas of all teams.
    ///
    /// # Errors
    /// If the key is not an admin's.
    pub async fn quotas(&self) -> Result<Vec<QuotaReport>, ApiError> {
        let list: QuotaList = self.call(Call::new(Method::GET, "/api/v1/quotas")).await?.parse()?;
        Ok(list.quotas)
    }

    /// The tiers that a team can have.
    ///
    /// # Errors
    /// Like [`Self::quotas`].
    pub async fn tiers(&self) -> Result<Tiers, ApiError> {
        self.call(Call::new(Method::GET, "/api/v1/tiers")).await?.parse()
    }

    /// The quota of a team.
    ///
    /// # Errors
    /// Like [`Self::quotas`], or if there is no such team.
    pub async fn team_quota(&self, team: &str) -> Result<QuotaReport, ApiError> {
        self.call(Call::new(Method::GET, quota_path(team))).await?.parse()
    }

    /// Replaces what was set for a team.
    ///
    /// # Errors
    /// Like [`Self::team_quota`], or if there is no such tier.
    pub async fn set_team_quota(&self, team: &str, quota: &TeamQuota) -> Result<QuotaReport, ApiError> {
        self.call(Call::new(Method::PUT, quota_path(team)).json(quota)).await?.parse()
    }

    /// Removes what was set for a team.
    ///
    /// # Errors
    /// Like [`Self::team_quota`].
    pub async fn reset_team_quota(&self, team: &str) -> Result<QuotaReport, ApiError> {
        self.call(Call::new(Method::DELETE, quota_path(team))).await?.parse()
    }
}

fn quota_path(team: &str) -> String {
    format!("/api/v1/teams/{}/quota", encode(team))
}
