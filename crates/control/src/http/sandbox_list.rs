//! `GET /sandboxes` (all that run) and `GET /v2/sandboxes` (in pages).

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;
use isopod_store::SandboxRow;
use isopod_store::clock::Timestamp;

use super::app::App;
use super::auth::Caller;
use super::body::Query;
use super::error::ApiError;
use super::sandbox_views::listed;
use super::templates::without_default_tag;
use crate::lifecycle::{Cursor, ListQuery, Order};
use crate::query::metadata_filter;

const PAGE: usize = 100;
const ALL: usize = 100_000;

pub(super) async fn list_v1(State(app): State<Arc<App>>, caller: Caller, query: Query) -> Result<Response, ApiError> {
    let query = query.known(&["metadata"]);
    let wanted = ListQuery {
        running: true,
        paused: false,
        limit: ALL,
        metadata: query.text("metadata").map(metadata_filter).unwrap_or_default(),
        ..everything(&caller)
    };
    let found = app.fleet.list(&wanted).sandboxes;
    Ok(Json(found.iter().map(|view| listed(&view.row)).collect::<Vec<_>>()).into_response())
}

pub(super) async fn list_v2(State(app): State<Arc<App>>, caller: Caller, query: Query) -> Result<Response, ApiError> {
    let wanted = wanted(&caller, query)?;
    let page = app.fleet.list(&wanted);
    let shown: Vec<_> = page.sandboxes.iter().map(|view| listed(&view.row)).collect();
    let mut response = Json(shown).into_response();
    let headers = response.headers_mut();
    if let (true, Some(last)) = (page.more, page.sandboxes.last()) {
        headers.insert("x-next-token", token_after(&last.row));
    }
    if wanted.running {
        headers.insert("x-total-running", HeaderValue::from(page.running));
    }
    Ok(response)
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

fn wanted(caller: &Caller, query: Query) -> Result<ListQuery, ApiError> {
    let query = query.known(&["metadata", "state", "order", "startedAfter", "template", "limit", "nextToken"]);
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
    let limit = query.number("limit", 1, i64::try_from(PAGE).unwrap_or(i64::MAX))?;
    wanted.limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(PAGE);
    Ok(wanted)
}

/// A plus sign of a time zone that the client did not escape has been read as a space.
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
    parse().ok_or_else(|| ApiError::bad_request("nextToken is not one of ours"))
}
