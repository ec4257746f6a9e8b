//! `/api/v1/quota`, `/api/v1/quotas`, `/api/v1/tiers` and `/api/v1/teams/{id}/quota`: the limits of teams. A team reads
//! its own, and admins read and set those of all teams.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, JsonBody};
use isopod_store::TeamId;
use isopod_store::service::{QuotaLimits, TeamQuota};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::names::checked_option;
use crate::Service;
use crate::quotas::QuotaReport;

/// Replaces what was set for the team. What is not given comes from the tier, or from the settings for all teams.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewQuota)]
pub(super) struct QuotaBody {
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_.:@-]+$")]
    tier: Option<String>,
    limits: Option<LimitsBody>,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = NewQuotaLimits)]
struct LimitsBody {
    #[schema(value_type = Option<u32>)]
    concurrent: Option<Value>,
    #[schema(value_type = Option<u32>)]
    per_hour: Option<Value>,
    #[schema(value_type = Option<u32>)]
    cpu_seconds_per_day: Option<Value>,
    #[schema(value_type = Option<u32>)]
    memory_mb: Option<Value>,
}

/// The quota of a team.
#[derive(Serialize, ToSchema)]
#[schema(as = Quota)]
pub(super) struct QuotaView {
    team_id: String,
    /// The tier that counts.
    tier: Option<String>,
    /// The limits that count.
    limits: QuotaLimitsView,
    /// What an admin set for this team.
    own: OwnQuota,
    /// How much is used of each limit.
    used: Used,
    /// Sandboxes of the team that run on this server, also those of the E2B API.
    running: u32,
}

/// Null is no limit.
#[derive(Serialize, ToSchema)]
#[schema(as = QuotaLimits)]
struct QuotaLimitsView {
    concurrent: Option<u32>,
    per_hour: Option<u32>,
    cpu_seconds_per_day: Option<u32>,
    memory_mb: Option<u32>,
}

#[derive(Serialize, ToSchema)]
struct OwnQuota {
    tier: Option<String>,
    limits: QuotaLimitsView,
}

#[derive(Serialize, ToSchema)]
#[schema(as = QuotaUsage)]
struct Used {
    concurrent: i64,
    per_hour: i64,
    cpu_seconds_per_day: i64,
    memory_mb: i64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Quotas)]
pub(super) struct QuotaList {
    quotas: Vec<QuotaView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Tiers)]
pub(super) struct TierList {
    /// The tier of teams that have none.
    default_tier: Option<String>,
    tiers: Vec<TierView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Tier)]
struct TierView {
    name: String,
    limits: QuotaLimitsView,
}

pub(super) async fn own(State(service): State<Arc<Service>>, caller: Caller) -> Result<Json<QuotaView>, ApiError> {
    Ok(Json(service.quota(&caller.team).await?.into()))
}

pub(super) async fn list(State(service): State<Arc<Service>>) -> Result<Json<QuotaList>, ApiError> {
    let reports = service.all_quotas().await?;
    Ok(Json(QuotaList { quotas: reports.into_iter().map(QuotaView::from).collect() }))
}

pub(super) async fn tiers(State(service): State<Arc<Service>>) -> Json<TierList> {
    let tiers = service.fleet.tiers();
    let view = |(name, limits): (&String, &QuotaLimits)| TierView { name: name.clone(), limits: (*limits).into() };
    Json(TierList { default_tier: tiers.default.clone(), tiers: tiers.limits.iter().map(view).collect() })
}

pub(super) async fn get(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<Json<QuotaView>, ApiError> {
    let team = TeamId(id);
    service.check_team(&team).await?;
    Ok(Json(service.quota(&team).await?.into()))
}

pub(super) async fn set(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    body: JsonBody<QuotaBody>,
) -> Result<Json<QuotaView>, ApiError> {
    let QuotaBody { tier, limits } = body.parse()?;
    let tier = checked_option("tier", tier)?;
    let own = TeamQuota { tier, limits: limits.unwrap_or_default().checked()? };
    Ok(Json(service.set_quota(&TeamId(id), own).await?.into()))
}

pub(super) async fn reset(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Result<Json<QuotaView>, ApiError> {
    Ok(Json(service.reset_quota(&TeamId(id)).await?.into()))
}

impl LimitsBody {
    fn checked(self) -> Result<QuotaLimits, ApiError> {
        Ok(QuotaLimits {
            concurrent: checked_limit("concurrent", self.concurrent)?,
            per_hour: checked_limit("per_hour", self.per_hour)?,
            cpu_seconds_per_day: checked_limit("cpu_seconds_per_day", self.cpu_seconds_per_day)?,
            memory_mib: checked_limit("memory_mb", self.memory_mb)?,
        })
    }
}

/// A limit of 0 allows nothing.
fn checked_limit(name: &str, value: Option<Value>) -> Result<Option<u32>, ApiError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    let wrong = || ApiError::bad_request(format!("limits.{name} must be a whole number from 0 to {}", u32::MAX));
    number.map(Some).ok_or_else(wrong)
}

impl From<QuotaReport> for QuotaView {
    fn from(report: QuotaReport) -> Self {
        let QuotaReport { team, own, tier, limits, used, running } = report;
        let own = OwnQuota { tier: own.tier, limits: own.limits.into() };
        let used = Used {
            concurrent: used.concurrent,
            per_hour: used.per_hour,
            cpu_seconds_per_day: used.cpu_seconds_per_day,
            memory_mb: used.memory_mib,
        };
        Self { team_id: team.0, tier, limits: limits.into(), own, used, running }
    }
}

impl From<QuotaLimits> for QuotaLimitsView {
    fn from(limits: QuotaLimits) -> Self {
        Self {
            concurrent: limits.concurrent,
            per_hour: limits.per_hour,
            cpu_seconds_per_day: limits.cpu_seconds_per_day,
            memory_mb: limits.memory_mib,
        }
    }
}
