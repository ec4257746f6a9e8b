//! Resource usage of sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Listing, Param, Query, QueryParams};
use isopod_store::Sample;
use isopod_store::clock::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::find_sandbox::{known_sandbox, live_sandbox};
use crate::lifecycle::sample_now;

pub(super) enum SandboxMetricsQuery {}

impl QueryParams for SandboxMetricsQuery {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[
        Param::number("start", 0, LATEST_SECOND).about("seconds since 1970"),
        Param::number("end", 0, LATEST_SECOND).about("seconds since 1970"),
    ];
}

pub(super) enum MetricsQuery {}

impl QueryParams for MetricsQuery {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[Param::text("sandbox_ids").required().about("sandbox ids, separated by commas")];
}

/// The resource usage of a sandbox at one moment.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SandboxMetric)]
pub(super) struct SampleView {
    timestamp: Timestamp,
    timestamp_unix: i64,
    cpu_count: i64,
    cpu_used_pct: f64,
    mem_used: i64,
    mem_total: i64,
    mem_cache: i64,
    disk_used: i64,
    disk_total: i64,
}

/// The last sample of each sandbox, by its id.
#[derive(Serialize, ToSchema)]
#[schema(as = SandboxesMetrics)]
pub(super) struct LastSamples {
    sandboxes: BTreeMap<String, SampleView>,
}

const MAX_SAMPLES: u32 = 10_000;
const MAX_SANDBOXES: usize = 100;
/// The last second that does not overflow in milliseconds.
const LATEST_SECOND: i64 = i64::MAX / 1000;

/// `GET /sandboxes/{id}/metrics`
pub(super) async fn of_one(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query<SandboxMetricsQuery>,
) -> Result<Listing<SampleView>, ApiError> {
    let sandbox = known_sandbox(&app.fleet, &caller, &id).await?;
    let start = query.number("start")?;
    let end = query.number("end")?;
    if let (Some(start), Some(end)) = (start, end)
        && start > end
    {
        return Err(ApiError::bad_request("start must not be after end"));
    }
    let from = Timestamp(start.unwrap_or(0) * 1000);
    // Includes the whole last second.
    let to = end.map_or(Timestamp(i64::MAX), |end| Timestamp(end.saturating_mul(1000).saturating_add(999)));
    let mut samples = app.fleet.store.list_samples(&sandbox, from, to, MAX_SAMPLES).await?;
    let any_time = start.is_none() && end.is_none();
    if samples.is_empty()
        && any_time
        && let Some(live) = app.fleet.find_of(&caller.team, &sandbox)
    {
        samples.extend(sample_now(&app.fleet, &live).await);
    }
    Ok(Listing(samples.iter().map(shown).collect()))
}

/// `GET /sandboxes/metrics?sandbox_ids=a,b`
pub(super) async fn of_many(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query<MetricsQuery>,
) -> Result<Json<LastSamples>, ApiError> {
    let ids: Vec<&str> = query.list("sandbox_ids").collect();
    if ids.is_empty() || ids.len() > MAX_SANDBOXES {
        return Err(ApiError::bad_request(format!("sandbox_ids must name 1 to {MAX_SANDBOXES} sandboxes")));
    }
    let mut sandboxes = BTreeMap::new();
    for id in ids {
        let Ok(live) = live_sandbox(&app.fleet, &caller, id).await else { continue };
        let (from, to) = (Timestamp(0), Timestamp(i64::MAX));
        let last = app.fleet.store.list_samples(live.id(), from, to, 1).await?.pop();
        let sample = match last {
            Some(sample) => Some(sample),
            None => sample_now(&app.fleet, &live).await,
        };
        if let Some(sample) = sample {
            sandboxes.insert(live.id().to_string(), shown(&sample));
        }
    }
    Ok(Json(LastSamples { sandboxes }))
}

fn shown(sample: &Sample) -> SampleView {
    SampleView {
        timestamp: sample.at,
        timestamp_unix: sample.at.unix_seconds(),
        cpu_count: sample.cpu_count,
        cpu_used_pct: sample.cpu_percent,
        mem_used: sample.mem_used,
        mem_total: sample.mem_total,
        mem_cache: sample.mem_cache,
        disk_used: sample.disk_used,
        disk_total: sample.disk_total,
    }
}
