//! What sandboxes use and used.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_store::Sample;
use isopod_store::clock::Timestamp;
use serde_json::{Map, Value, json};

use super::app::App;
use super::auth::Caller;
use super::body::Query;
use super::error::ApiError;
use crate::lifecycle::sample_now;

const MAX_SAMPLES: u32 = 10_000;
const MAX_SANDBOXES: usize = 100;
/// The last moment that fits when counted in milliseconds.
const LATEST_SECOND: i64 = i64::MAX / 1000;

/// `GET /sandboxes/{id}/metrics`
pub(super) async fn of_one(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let sandbox = caller.known_sandbox(&app.fleet, &id).await?;
    let query = query.known(&["start", "end"]);
    let start = query.number("start", 0, LATEST_SECOND)?;
    let end = query.number("end", 0, LATEST_SECOND)?;
    if let (Some(start), Some(end)) = (start, end)
        && start > end
    {
        return Err(ApiError::bad_request("start must not be after end"));
    }
    let from = Timestamp(start.unwrap_or(0) * 1000);
    // A second is asked for as a whole.
    let to = end.map_or(Timestamp(i64::MAX), |end| Timestamp(end.saturating_mul(1000).saturating_add(999)));
    let mut samples = app.fleet.store.list_samples(&sandbox, from, to, MAX_SAMPLES).await?;
    let any_time = start.is_none() && end.is_none();
    if samples.is_empty()
        && any_time
        && let Some(live) = app.fleet.find_of(&caller.team, &sandbox)
    {
        samples.extend(sample_now(&app.fleet, &live).await);
    }
    Ok(Json(samples.iter().map(shown).collect()))
}

/// `GET /sandboxes/metrics?sandbox_ids=a,b`
pub(super) async fn of_many(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let query = query.known(&["sandbox_ids"]);
    let ids: Vec<&str> = query.list("sandbox_ids").collect();
    if ids.is_empty() || ids.len() > MAX_SANDBOXES {
        return Err(ApiError::bad_request(format!("sandbox_ids must name 1 to {MAX_SANDBOXES} sandboxes")));
    }
    let mut sandboxes = Map::new();
    for id in ids {
        let Ok(live) = caller.sandbox(&app.fleet, id).await else { continue };
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
    Ok(Json(json!({ "sandboxes": sandboxes })))
}

fn shown(sample: &Sample) -> Value {
    json!({
        "timestamp": sample.at,
        "timestampUnix": sample.at.unix_seconds(),
        "cpuCount": sample.cpu_count,
        "cpuUsedPct": sample.cpu_percent,
        "memUsed": sample.mem_used,
        "memTotal": sample.mem_total,
        "memCache": sample.mem_cache,
        "diskUsed": sample.disk_used,
        "diskTotal": sample.disk_total,
    })
}
