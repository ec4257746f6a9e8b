//! `GET /snapshots`: the team's snapshots, latest first, with pagination.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;
use isopod_api::{ApiError, Caller, Listing, Param, Prepared, Query, QueryParams};
use isopod_store::SnapshotQuery;

use super::app::App;
use super::snapshot_views::{SnapshotView, own_reference, shown};

pub(super) enum ListSnapshots {}

impl QueryParams for ListSnapshots {
    const IGNORES_UNKNOWN: bool = true;
    const PARAMS: &'static [Param] = &[
        Param::text("sandboxID").about("the sandbox that they were taken of, also if it is gone"),
        Param::text("name").about("a name, name:tag or id"),
        Param::number("limit", 1, PAGE as i64),
        Param::text("nextToken").about("the header x-next-token of the previous page"),
    ];
}

const PAGE: u32 = 100;

pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    query: Query<ListSnapshots>,
) -> Result<Prepared<Listing<SnapshotView>>, ApiError> {
    let limit = query.number("limit")?.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(PAGE);
    let reference = query.text("name").map(|name| own_reference(&caller, name)).transpose()?;
    let wanted = SnapshotQuery {
        team: caller.team.clone(),
        sandbox: query.text("sandboxID").map(|id| id.split('-').next().unwrap_or_default().to_owned()),
        name: reference.as_ref().map(|reference| reference.name.clone()),
        tag: reference.and_then(|reference| reference.tag),
        before: query.text("nextToken").map(parse_token).transpose()?,
        // One more than the page shows whether there is another page.
        limit: limit + 1,
    };
    let mut found = app.fleet.store.list_snapshots(&wanted).await?;
    let has_more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = found.last().filter(|_| has_more).map(|last| token_after(last.position));
    let mut response = Listing(found.into_iter().map(shown).collect()).into_response();
    if let Some(next) = next {
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(Prepared::new(response))
}

fn token_after(position: i64) -> HeaderValue {
    let token = URL_SAFE_NO_PAD.encode(position.to_string());
    HeaderValue::from_str(&token).expect("base64url has only visible ASCII characters")
}

fn parse_token(token: &str) -> Result<i64, ApiError> {
    let text = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let position = text.and_then(|text| text.parse().ok());
    position.ok_or_else(|| ApiError::bad_request("nextToken is invalid"))
}
