//! `/events/sandboxes`: what happened to sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use isopod_store::{Event, EventQuery, EventType, Store};
use isopod_wire::SandboxId;
use serde_json::Value;

use super::app::App;
use super::auth::Caller;
use super::body::Query;
use super::error::ApiError;

pub(super) async fn of_team(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    list(&app.fleet.store, &caller, None, query).await
}

pub(super) async fn of_sandbox(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let sandbox = caller.known_sandbox(&app.fleet, &id).await?;
    list(&app.fleet.store, &caller, Some(sandbox), query).await
}

async fn list(
    store: &Store,
    caller: &Caller,
    sandbox: Option<SandboxId>,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let query = query.only(&["offset", "limit", "orderAsc", "types"])?;
    let ascending = match query.text("orderAsc") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(ApiError::bad_request("orderAsc must be true or false")),
    };
    let types = query.list("types").map(|text| {
        EventType::parse(text).ok_or_else(|| ApiError::bad_request(format!("unknown event type {text:?}")))
    });
    let wanted = EventQuery {
        team: caller.team.clone(),
        sandbox,
        types: types.collect::<Result<_, _>>()?,
        ascending,
        offset: bounded(query.number("offset", 0, i64::from(u32::MAX))?, 0),
        limit: bounded(query.number("limit", 1, 100)?, 10),
    };
    let events = store.list_events(&wanted).await?;
    Ok(Json(events.iter().map(Event::json).collect()))
}

fn bounded(number: Option<i64>, default: u32) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
}
