//! `/api/v1/audit`: the audit log of a team, and whole chains for admins.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse as _;
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, header};
use isopod_api::{ApiError, Caller, JsonLines, Param, Query, QueryParams};
use isopod_store::clock::Timestamp;
use isopod_store::service::{AuditLine, AuditQuery, Verified};
use isopod_store::{Store, StoreError};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::Access;
use crate::Service;

pub(super) enum ListAudit {}

impl QueryParams for ListAudit {
    const PARAMS: &'static [Param] = &[
        Param::text("agent_id"),
        Param::text("sandbox_id"),
        Param::text("action"),
        Param::time("from"),
        Param::time("to"),
        Param::number("limit", 1, PAGE),
    ];
}

#[derive(Serialize, ToSchema)]
pub(super) struct AuditLines {
    lines: Vec<AuditLine>,
}

const PAGE: i64 = 1000;
const EXPORT_PAGE: u32 = 1000;

pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    query: Query<ListAudit>,
) -> Result<Json<AuditLines>, ApiError> {
    let access = Access::from(&caller);
    let limit = query.number("limit")?.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(100);
    let wanted = AuditQuery {
        team: access.team_filter(),
        agent: access.agent_filter(query.text("agent_id"))?,
        sandbox: query.text("sandbox_id").map(str::to_owned),
        action: query.text("action").map(str::to_owned),
        from: parse_time(&query, "from")?,
        to: parse_time(&query, "to")?,
        limit,
    };
    Ok(Json(AuditLines { lines: service.store.list_audit(&wanted).await? }))
}

/// This server's whole chain as JSON lines, oldest first: what `verify` computes from. It holds the lines of all teams,
/// so its route is for admins.
pub(super) async fn export(State(service): State<Arc<Service>>) -> Result<JsonLines, ApiError> {
    let start = (service.store.clone(), service.server.clone(), Some(0));
    let pages = stream::try_unfold(start, |(store, server, after)| async move {
        let Some(after) = after else { return Ok(None) };
        let (text, last) = page(&store, &server, after).await?;
        Ok::<_, StoreError>(last.map(|last| (Bytes::from(text), (store, server, Some(last)))))
    });
    let mut response = Body::from_stream(pages).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/jsonl"));
    Ok(JsonLines(response))
}

async fn page(store: &Store, server: &str, after: i64) -> Result<(String, Option<i64>), StoreError> {
    let lines = store.audit_page(server, after, EXPORT_PAGE).await?;
    let text = lines.iter().map(|line| json!(line).to_string() + "\n").collect();
    Ok((text, lines.last().map(|line| line.number())))
}

pub(super) async fn verify(State(service): State<Arc<Service>>) -> Result<Json<Verified>, ApiError> {
    Ok(Json(service.store.verify_audit(&service.server).await?))
}

/// A time such as 2026-01-31T12:00:00Z.
pub(super) fn parse_time<P: QueryParams>(query: &Query<P>, name: &str) -> Result<Option<Timestamp>, ApiError> {
    let Some(text) = query.text(name) else { return Ok(None) };
    let parsed = Timestamp::parse_rfc3339(&text.replace(' ', "+"));
    parsed.map(Some).ok_or_else(|| ApiError::bad_request(format!("{name} must be a time such as 2026-01-31T12:00:00Z")))
}
