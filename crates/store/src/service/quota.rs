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
    filter: Option<(&'static str, &str)>,
) -> Result<Option<QuotaExceeded>, sqlx::Error> {
    let now = Timestamp::now().0;
    if limits.concurrent.is_some() || limits.memory_mib.is_some() {
        let what = "count(*), CAST(coalesce(sum(s.memory_mib), 0) AS BIGINT)";
        let running = " AND s.destroyed_at IS NULL AND s.status IN ('creating', 'running')";
        let (count, memory) = count_of(connection, what, claimant.team, filter, running, None).await?;
        if let Some(found) = over(owner, "concurrent", limits.concurrent, count, 1) {
            return Ok(Some(found));
        }
        if let Some(found) = over(owner, "memory_mib", limits.memory_mib, memory, claimant.memory_mib) {
            return Ok(Some(found));
        }
    }
    if limits.per_hour.is_some() && claimant.is_new {
        let since = Some(now - HOUR_MS);
        let (count, _) = count_of(connection, "count(*), 0", claimant.team, filter, "", since).await?;
        if let Some(found) = over(owner, "per_hour", limits.per_hour, count, 1) {
            return Ok(Some(found));
        }
    }
    if limits.cpu_seconds_per_day.is_some() {
        let since = Some(now - 24 * HOUR_MS);
        let what = "CAST(coalesce(sum(u.cpu_micros), 0) AS BIGINT), 0";
        let (micros, _) = count_of(connection, what, claimant.team, filter, "", since).await?;
        return Ok(over(owner, "cpu_seconds_per_day", limits.cpu_seconds_per_day, micros / 1_000_000, 1));
    }
    Ok(None)
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
    filter: Option<(&'static str, &str)>,
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
