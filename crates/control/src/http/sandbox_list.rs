//! `GET /sandboxes` (all running ones) and `GET /v2/sandboxes` (with pagination).

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;
use isopod_api::{ApiError, Caller, Listing, Param, Prepared, Query, QueryParams, query::metadata_filter};
use isopod_store::SandboxRow;
use isopod_store::clock::Timestamp;

use super::app::App;
use super::sandbox_views::{Listed, listed};
use super::templates::without_default_tag;
use crate::lifecycle::{Cursor, ListQuery, Order};

pub(super) enum ListV1 {}

impl QueryParams for ListV1 {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[METADATA];
}

pub(super) enum ListV2 {}

impl QueryParams for ListV2 {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[
        METADATA,
        Param::text("state").about("running, paused or both, separated by a comma"),
        Param::one_of("order", &["asc", "desc"]),
        Param::time("startedAfter"),
        Param::text("template"),
        Param::number("limit", 1, PAGE as i64),
        Param::text("nextToken").about("the header x-next-token of the previous page"),
    ];
}

const METADATA: Param = Param::text("metadata").about("key=value pairs, url-encoded");
const PAGE: usize = 100;
const ALL: usize = 100_000;

/// Serialized without copying the rows; see [`Listed`].
type Answer = Result<Prepared<Listing<Listed<'static>>>, ApiError>;

pub(super) async fn list_v1(State(app): State<Arc<App>>, caller: Caller, query: Query<ListV1>) -> Answer {
    let wanted = ListQuery {
        running: true,
        paused: false,
        limit: ALL,
        metadata: query.text("metadata").map(metadata_filter).unwrap_or_default(),
        ..everything(&caller)
    };
    let found = app.fleet.list(&wanted).sandboxes;
    Ok(Prepared::new(Listing(found.iter().map(|view| listed(&view.row)).collect()).into_response()))
}

pub(super) async fn list_v2(State(app): State<Arc<App>>, caller: Caller, query: Query<ListV2>) -> Answer {
    let wanted = wanted(&caller, &query)?;
    let page = app.fleet.list(&wanted);
    let shown: Vec<_> = page.sandboxes.iter().map(|view| listed(&view.row)).collect();
    let mut response = Listing(shown).into_response();
    let headers = response.headers_mut();
    if let (true, Some(last)) = (page.more, page.sandboxes.last()) {
        headers.insert("x-next-token", token_after(&last.row));
    }
    if wanted.running {
        headers.insert("x-total-running", HeaderValue::from(page.running));
    }
    Ok(Prepared::new(response))
}

fn everything(caller: &Caller) -> ListQuery {
    ListQuery {
        team: caller.team.clone(),
        running: true,
        paused: true,
        metadata: Vec::new(),
        template: None,
        started_after: None,
        order: Order::Descending,
        after: None,
        limit: PAGE,
    }
}

fn wanted(caller: &Caller, query: &Query<ListV2>) -> Result<ListQuery, ApiError> {
    let mut wanted = everything(caller);
    let states: Vec<&str> = query.list("state").collect();
    if let Some(unknown) = states.iter().find(|state| !["running", "paused"].contains(state)) {
        return Err(ApiError::bad_request(format!("unknown state {unknown:?}")));
    }
    if !states.is_empty() {
        (wanted.running, wanted.paused) = (states.contains(&"running"), states.contains(&"paused"));
    }
    wanted.order = match query.text("order") {
        None | Some("desc") => Order::Descending,
        Some("asc") => Order::Ascending,
        Some(_) => return Err(ApiError::bad_request("order must be asc or desc")),
    };
    wanted.started_after = query.text("startedAfter").map(parse_time).transpose()?;
    wanted.template = query.text("template").map(|name| without_default_tag(name).to_owned());
    wanted.metadata = query.text("metadata").map(metadata_filter).unwrap_or_default();
    wanted.after = query.text("nextToken").map(parse_token).transpose()?;
    let limit = query.number("limit")?;
    wanted.limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(PAGE);
    Ok(wanted)
}

/// An unescaped plus sign of a time zone was parsed as a space.
fn parse_time(text: &str) -> Result<Timestamp, ApiError> {
    Timestamp::parse_rfc3339(&text.replace(' ', "+"))
        .ok_or_else(|| ApiError::bad_request("startedAfter must be a time such as 2026-01-31T12:00:00Z"))
}

fn token_after(row: &SandboxRow) -> HeaderValue {
    let token = URL_SAFE_NO_PAD.encode(format!("{}__{}", row.started_at.0, row.id));
    HeaderValue::from_str(&token).expect("base64url has only visible ASCII characters")
}

fn parse_token(token: &str) -> Result<Cursor, ApiError> {
    let parse = || {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let (started_at, id) = text.split_once("__")?;
        Some(Cursor { started_at: Timestamp(started_at.parse().ok()?), id: id.parse().ok()? })
    };
    parse().ok_or_else(|| ApiError::bad_request("nextToken is invalid"))
}
