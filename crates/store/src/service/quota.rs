//! Limits for teams, agents and tasks. Usage is counted in the transaction that records a new sandbox, so that
//! concurrent callers cannot exceed a limit together.

use serde::Serialize;

use crate::TeamId;
use crate::clock::Timestamp;
use crate::database::{QueryBuilder, Transaction};

/// The limits of one owner. By default, none is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// The number of sandboxes that run at the same time.
    pub concurrent: Option<u32>,
    /// The number of sandboxes created within an hour.
    pub per_hour: Option<u32>,
    /// The CPU time used within a day, in seconds.
    pub cpu_seconds_per_day: Option<u32>,
    /// The memory limits of running sandboxes in total, in MiB.
    pub memory_mib: Option<u32>,
}

impl QuotaLimits {
    /// These limits, and others where these have none.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            concurrent: self.concurrent.or(others.concurrent),
            per_hour: self.per_hour.or(others.per_hour),
            cpu_seconds_per_day: self.cpu_seconds_per_day.or(others.cpu_seconds_per_day),
            memory_mib: self.memory_mib.or(others.memory_mib),
        }
    }
}

/// How much of its limits an owner uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaUsage {
    /// The number of sandboxes that run.
    pub concurrent: i64,
    /// The number of sandboxes created in the last hour.
    pub per_hour: i64,
    /// The CPU time of sandboxes created in the last day, in seconds.
    pub cpu_seconds_per_day: i64,
    /// The memory limits of the sandboxes that run, in MiB.
    pub memory_mib: i64,
}

/// The limits of all owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// The limits of each team.
    pub team: QuotaLimits,
    /// The limits of each agent of a team.
    pub agent: QuotaLimits,
    /// The limits of each task of a team.
    pub task: QuotaLimits,
}

/// The owner of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QuotaOwner {
    Team,
    Agent,
    Task,
}

/// The limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("the {owner:?} has reached its limit of {limit} ({what})")]
pub struct QuotaExceeded {
    /// The owner of the limit.
    pub owner: QuotaOwner,
    /// The limit: `concurrent`, `per_hour`, `cpu_seconds_per_day` or `memory_mib`.
    pub what: &'static str,
    /// The value of the limit.
    pub limit: i64,
    /// The current usage.
    pub used: i64,
}

/// Who requests one more sandbox, and of which size.
#[derive(Clone, Debug)]
pub(super) struct Claimant<'a> {
    pub(super) team: &'a TeamId,
    pub(super) agent: Option<&'a str>,
    pub(super) task: Option<&'a str>,
    pub(super) memory_mib: i64,
    /// Whether the sandbox is new, so that it counts towards the hourly limit.
    pub(super) is_new: bool,
}

const HOUR_MS: i64 = 3_600_000;

/// The first limit that one more sandbox would exceed.
pub(super) async fn exceeded(
    connection: &mut Transaction,
    quotas: &Quotas,
    claimant: &Claimant<'_>,
) -> Result<Option<QuotaExceeded>, sqlx::Error> {
    let owners = [
        (QuotaOwner::Team, &quotas.team, Some(None)),
        (QuotaOwner::Agent, &quotas.agent, claimant.agent.map(|id| Some(("agent", id)))),
        (QuotaOwner::Task, &quotas.task, claimant.task.map(|id| Some(("task", id)))),
    ];
    for (owner, limits, filter) in owners {
        let Some(filter) = filter else { continue };
        if let Some(found) = exceeded_by(connection, owner, limits, claimant, filter).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

async fn exceeded_by(
    connection: &mut Transaction,
    owner: QuotaOwner,
    limits: &QuotaLimits,
    claimant: &Claimant<'_>,
    filter: Filter<'_>,
) -> Result<Option<QuotaExceeded>, sqlx::Error> {
    if limits.concurrent.is_some() || limits.memory_mib.is_some() {
        let (count, memory) = running(connection, claimant.team, filter).await?;
        if let Some(found) = over(owner, "concurrent", limits.concurrent, count, 1) {
            return Ok(Some(found));
        }
        if let Some(found) = over(owner, "memory_mib", limits.memory_mib, memory, claimant.memory_mib) {
            return Ok(Some(found));
        }
    }
    if limits.per_hour.is_some() && claimant.is_new {
        let count = created_in_an_hour(connection, claimant.team, filter).await?;
        if let Some(found) = over(owner, "per_hour", limits.per_hour, count, 1) {
            return Ok(Some(found));
        }
    }
    if limits.cpu_seconds_per_day.is_some() {
        let seconds = cpu_seconds_in_a_day(connection, claimant.team, filter).await?;
        return Ok(over(owner, "cpu_seconds_per_day", limits.cpu_seconds_per_day, seconds, 1));
    }
    Ok(None)
}

/// What a whole team uses.
pub(super) async fn usage_of(connection: &mut Transaction, team: &TeamId) -> Result<QuotaUsage, sqlx::Error> {
    let (concurrent, memory_mib) = running(connection, team, None).await?;
    let per_hour = created_in_an_hour(connection, team, None).await?;
    let cpu_seconds_per_day = cpu_seconds_in_a_day(connection, team, None).await?;
    Ok(QuotaUsage { concurrent, per_hour, cpu_seconds_per_day, memory_mib })
}

/// A column and the value that it must have, or the whole team.
type Filter<'a> = Option<(&'static str, &'a str)>;

/// The number of running sandboxes, and their memory in MiB.
async fn running(connection: &mut Transaction, team: &TeamId, filter: Filter<'_>) -> Result<(i64, i64), sqlx::Error> {
    let what = "count(*), CAST(coalesce(sum(s.memory_mib), 0) AS BIGINT)";
    let running = " AND s.destroyed_at IS NULL AND s.status IN ('creating', 'running')";
    count_of(connection, what, team, filter, running, None).await
}

async fn created_in_an_hour(
    connection: &mut Transaction,
    team: &TeamId,
    filter: Filter<'_>,
) -> Result<i64, sqlx::Error> {
    let since = Some(Timestamp::now().0 - HOUR_MS);
    let (count, _) = count_of(connection, "count(*), 0", team, filter, "", since).await?;
    Ok(count)
}

async fn cpu_seconds_in_a_day(
    connection: &mut Transaction,
    team: &TeamId,
    filter: Filter<'_>,
) -> Result<i64, sqlx::Error> {
    let since = Some(Timestamp::now().0 - 24 * HOUR_MS);
    let what = "CAST(coalesce(sum(u.cpu_micros), 0) AS BIGINT), 0";
    let (micros, _) = count_of(connection, what, team, filter, "", since).await?;
    Ok(micros / 1_000_000)
}

fn over(owner: QuotaOwner, what: &'static str, limit: Option<u32>, used: i64, more: i64) -> Option<QuotaExceeded> {
    let limit = i64::from(limit?);
    (used.saturating_add(more) > limit).then_some(QuotaExceeded { owner, what, limit, used })
}

/// The names and conditions are constants in this file. Values from outside are bound.
async fn count_of(
    connection: &mut Transaction,
    what: &'static str,
    team: &TeamId,
    filter: Filter<'_>,
    condition: &'static str,
    since: Option<i64>,
) -> Result<(i64, i64), sqlx::Error> {
    let mut query = QueryBuilder::new("SELECT ");
    query.push(what).push(" FROM service_sandboxes s ");
    if what.contains("u.") {
        query.push("JOIN sandbox_usage u ON u.sandbox = s.sandbox ");
    }
    query.push("WHERE s.team = ").push_bind(&team.0).push(condition);
    if let Some((column, id)) = filter {
        query.push(" AND s.").push(column).push(" = ").push_bind(id);
    }
    if let Some(since) = since {
        query.push(" AND s.created_at > ").push_bind(since);
    }
    let row = query.build().fetch_one(connection).await?;
    Ok((row.get(0), row.get(1)))
}
