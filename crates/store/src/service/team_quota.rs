//! The tier and the own limits of a team, as an admin set them.

use super::quota::{QuotaLimits, QuotaUsage, usage_of};
use crate::clock::Timestamp;
use crate::database::{Row, query};
use crate::{Store, StoreError, TeamId};

/// What an admin set for one team.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TeamQuota {
    /// The name of a tier of the settings.
    pub tier: Option<String>,
    /// Limits that replace those of the tier.
    pub limits: QuotaLimits,
}

impl Store {
    /// What was set for this team. Nothing, if nothing was.
    pub async fn team_quota(&self, team: &TeamId) -> Result<TeamQuota, StoreError> {
        let found = query(
            "SELECT team, tier, concurrent, per_hour, cpu_seconds_per_day, memory_mib FROM team_quotas WHERE team = ?",
        )
        .bind(&team.0)
        .fetch_optional(&self.read)
        .await
        .map_err(StoreError::doing("read a team's quota"))?;
        Ok(found.as_ref().map(|row| read(row).1).unwrap_or_default())
    }

    /// What was set for each team, in the order of the teams.
    pub async fn team_quotas(&self) -> Result<Vec<(TeamId, TeamQuota)>, StoreError> {
        let rows = query(
            "SELECT t.id, q.tier, q.concurrent, q.per_hour, q.cpu_seconds_per_day, q.memory_mib \
             FROM teams t LEFT JOIN team_quotas q ON q.team = t.id ORDER BY t.created_at, t.id",
        )
        .fetch_all(&self.read)
        .await
        .map_err(StoreError::doing("list the teams' quotas"))?;
        Ok(rows.iter().map(read).collect())
    }

    /// Sets the tier and the limits of a team. Returns false if the team does not exist.
    pub async fn set_team_quota(&self, team: &TeamId, quota: &TeamQuota) -> Result<bool, StoreError> {
        let TeamQuota { tier, limits } = quota;
        let done = query(
            "INSERT INTO team_quotas (team, tier, concurrent, per_hour, cpu_seconds_per_day, memory_mib, updated_at) \
             SELECT id, ?, ?, ?, ?, ?, ? FROM teams WHERE id = ? \
             ON CONFLICT (team) DO UPDATE SET tier = excluded.tier, concurrent = excluded.concurrent, \
             per_hour = excluded.per_hour, cpu_seconds_per_day = excluded.cpu_seconds_per_day, \
             memory_mib = excluded.memory_mib, updated_at = excluded.updated_at",
        )
        .bind(tier)
        .bind(limits.concurrent.map(i64::from))
        .bind(limits.per_hour.map(i64::from))
        .bind(limits.cpu_seconds_per_day.map(i64::from))
        .bind(limits.memory_mib.map(i64::from))
        .bind(Timestamp::now().0)
        .bind(&team.0)
        .execute(&self.write)
        .await
        .map_err(StoreError::doing("record a team's quota"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Removes what was set for a team.
    pub async fn remove_team_quota(&self, team: &TeamId) -> Result<(), StoreError> {
        query("DELETE FROM team_quotas WHERE team = ?")
            .bind(&team.0)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("remove a team's quota"))?;
        Ok(())
    }

    /// How much of its limits a team uses.
    pub async fn quota_usage(&self, team: &TeamId) -> Result<QuotaUsage, StoreError> {
        let failed = StoreError::doing("count what a team uses");
        let mut transaction = self.read.begin().await.map_err(&failed)?;
        usage_of(&mut transaction, team).await.map_err(&failed)
    }
}

fn read(row: &Row) -> (TeamId, TeamQuota) {
    let limits = QuotaLimits {
        concurrent: row.get(2),
        per_hour: row.get(3),
        cpu_seconds_per_day: row.get(4),
        memory_mib: row.get(5),
    };
    (TeamId(row.get(0)), TeamQuota { tier: row.get(1), limits })
}
