//! `isopod quota`: the limits of teams, through a server, so that every change is in its audit log.

use std::process::ExitCode;

use isopod_client::sandbox::{QuotaLimits, QuotaReport, TeamQuota, Tiers};
use isopod_client::{ApiError, Client};

use super::remote;
use super::show::print_table;
use crate::args::{LimitArgs, QuotaArgs, QuotaCommand};
use crate::failure::Hint;
use crate::say::print_json_pretty;

pub(super) async fn run(args: QuotaArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        QuotaCommand::Ls { common } => {
            let quotas = remote::client(&common.server)?.quotas().await.map_err(explain)?;
            show(&quotas, common.json, &quotas);
        }
        QuotaCommand::Show { team, common } => {
            let client = remote::client(&common.server)?;
            let quota = match &team {
                Some(team) => client.team_quota(team).await,
                None => client.quota().await,
            };
            let quota = quota.map_err(explain)?;
            show(std::slice::from_ref(&quota), common.json, &quota);
        }
        QuotaCommand::Set { team, limits, common } => {
            let quota = set(&remote::client(&common.server)?, &team, limits).await.map_err(explain)?;
            show(std::slice::from_ref(&quota), common.json, &quota);
        }
        QuotaCommand::Reset { team, common } => {
            let quota = remote::client(&common.server)?.reset_team_quota(&team).await.map_err(explain)?;
            show(std::slice::from_ref(&quota), common.json, &quota);
        }
        QuotaCommand::Tiers { common } => {
            let tiers = remote::client(&common.server)?.tiers().await.map_err(explain)?;
            show_tiers(&tiers, common.json);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The API replaces all of what was set, so what is not named is read first.
async fn set(client: &Client, team: &str, given: LimitArgs) -> Result<QuotaReport, ApiError> {
    let before = client.team_quota(team).await?.own;
    client.set_team_quota(team, &merged(before, given)).await
}

fn merged(before: TeamQuota, given: LimitArgs) -> TeamQuota {
    let TeamQuota { tier, limits } = before;
    let limits = QuotaLimits {
        concurrent: given.concurrent.or(limits.concurrent),
        per_hour: given.per_hour.or(limits.per_hour),
        cpu_seconds_per_day: given.cpu_seconds_per_day.or(limits.cpu_seconds_per_day),
        memory_mb: given.memory_mb.or(limits.memory_mb),
    };
    TeamQuota { tier: given.tier.or(tier), limits }
}

fn show(quotas: &[QuotaReport], as_json: bool, json: &(impl serde::Serialize + ?Sized)) {
    if as_json {
        return print_json_pretty(json);
    }
    let rows: Vec<Vec<String>> = quotas.iter().map(row).collect();
    print_table(&["TEAM", "TIER", "CONCURRENT", "PER HOUR", "CPU SECONDS PER DAY", "MEMORY MB", "RUNNING"], &rows);
}

fn row(quota: &QuotaReport) -> Vec<String> {
    let QuotaReport { limits, used, .. } = quota;
    vec![
        quota.team_id.clone(),
        tier(quota),
        share(used.concurrent, limits.concurrent),
        share(used.per_hour, limits.per_hour),
        share(used.cpu_seconds_per_day, limits.cpu_seconds_per_day),
        share(used.memory_mb, limits.memory_mb),
        quota.running.to_string(),
    ]
}

/// A tier that the settings no longer have is shown, because somebody should know.
fn tier(quota: &QuotaReport) -> String {
    match (&quota.own.tier, &quota.tier) {
        (Some(own), counts) if counts.as_ref() != Some(own) => format!("{own} (not in the settings)"),
        (_, Some(tier)) => tier.clone(),
        (_, None) => "-".to_owned(),
    }
}

fn share(used: i64, limit: Option<u32>) -> String {
    format!("{used} of {}", number(limit))
}

fn number(limit: Option<u32>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

fn show_tiers(tiers: &Tiers, as_json: bool) {
    if as_json {
        return print_json_pretty(tiers);
    }
    let rows: Vec<Vec<String>> = tiers
        .tiers
        .iter()
        .map(|tier| {
            let mark = if tiers.default_tier.as_ref() == Some(&tier.name) { " (default)" } else { "" };
            let QuotaLimits { concurrent, per_hour, cpu_seconds_per_day, memory_mb } = tier.limits;
            let limits = [concurrent, per_hour, cpu_seconds_per_day, memory_mb].map(number);
            std::iter::once(format!("{}{mark}", tier.name)).chain(limits).collect()
        })
        .collect();
    print_table(&["TIER", "CONCURRENT", "PER HOUR", "CPU SECONDS PER DAY", "MEMORY MB"], &rows);
}

/// What only an admin may do is refused with the way to become one.
fn explain(error: ApiError) -> anyhow::Error {
    match &error {
        ApiError::Server { code: 403, .. } => Hint::new(
            error.to_string(),
            "set E2B_API_KEY to an admin key: sudo isopod key create --local --scope admin; a team sees its own limits with: isopod quota show",
        ),
        ApiError::NotFound { .. } => Hint::new(error.to_string(), "isopod quota ls lists the teams"),
        _ => remote::explain(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_stays() {
        let limits = QuotaLimits { concurrent: Some(3), memory_mb: Some(512), ..QuotaLimits::default() };
        let before = TeamQuota { tier: Some("pro".to_owned()), limits };
        let given = LimitArgs { concurrent: Some(0), ..LimitArgs::default() };
        let after = merged(before.clone(), given);
        assert_eq!((after.tier.as_deref(), after.limits.concurrent), (Some("pro"), Some(0)));
        assert_eq!(after.limits.memory_mb, Some(512));
        let given = LimitArgs { tier: Some("free".to_owned()), ..LimitArgs::default() };
        assert_eq!(merged(before, given), TeamQuota { tier: Some("free".to_owned()), limits });
    }
}
