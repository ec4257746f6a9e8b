//! `/events/sandboxes`: lifecycle events of sandboxes.

use std::sync::Arc;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Listing, Param, Query, QueryParams};
use isopod_store::{Event, EventQuery, EventType, ShownEvent, Store};
use isopod_wire::SandboxId;

use super::app::App;
use super::find_sandbox::known_sandbox;

pub(super) enum ListEvents {}

impl QueryParams for ListEvents {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[
        Param::number("offset", 0, u32::MAX as i64),
        Param::number("limit", 1, 100),
        Param::flag("orderAsc"),
        Param::text("types").about("event types, separated by commas"),
    ];
}

pub(super) async fn of_team(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query<ListEvents>,
) -> Result<Listing<ShownEvent>, ApiError> {
    list(&app.fleet.store, &caller, None, query).await
}

pub(super) async fn of_sandbox(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    query: Query<ListEvents>,
) -> Result<Listing<ShownEvent>, ApiError> {
    let sandbox = known_sandbox(&app.fleet, &caller, &id).await?;
    list(&app.fleet.store, &caller, Some(sandbox), query).await
}

async fn list(
    store: &Store,
    caller: &Caller,
    sandbox: Option<SandboxId>,
    query: Query<ListEvents>,
) -> Result<Listing<ShownEvent>, ApiError> {
    let ascending = query.flag("orderAsc")?;
    let types = query.list("types").map(|text| {
        EventType::parse(text).ok_or_else(|| ApiError::bad_request(format!("unknown event type {text:?}")))
    });
    let wanted = EventQuery {
        team: caller.team.clone(),
        sandbox,
        types: types.collect::<Result<_, _>>()?,
        ascending,
        offset: bounded(query.number("offset")?, 0),
        limit: bounded(query.number("limit")?, 10),
    };
    let events = store.list_events(&wanted).await?;
    Ok(Listing(events.into_iter().map(Event::shown).collect()))
}

fn bounded(number: Option<i64>, default: u32) -> u32 {
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
}
