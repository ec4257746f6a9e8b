//! `/events/webhooks`: who wants to be told about events.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use isopod_outbound::{Target, TargetError};
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use isopod_store::{EventType, Store, Webhook};
use isopod_wire::node::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::App;
use super::auth::Caller;
use super::body::JsonBody;
use super::error::ApiError;

/// A new webhook needs all but `enabled`; a change may have any.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebhookBody {
    name: Option<String>,
    url: Option<String>,
    enabled: Option<bool>,
    events: Option<Vec<String>>,
    signature_secret: Option<String>,
}

const MAX_WEBHOOKS: usize = 50;
const MIN_SECRET: usize = 16;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let body: WebhookBody = body.parse()?;
    if app.fleet.store.list_webhooks(&caller.team).await?.len() >= MAX_WEBHOOKS {
        return Err(ApiError::bad_request(format!("a team can have {MAX_WEBHOOKS} webhooks")));
    }
    let missing = |name: &str| ApiError::bad_request(format!("{name} is required"));
    let webhook = Webhook {
        id: new_uuid(),
        url: checked_url(&app, &caller, body.url.ok_or_else(|| missing("url"))?).await?,
        team: caller.team,
        name: checked_name(body.name.ok_or_else(|| missing("name"))?)?,
        enabled: body.enabled.unwrap_or(true),
        events: checked_events(&body.events.ok_or_else(|| missing("events"))?)?,
        secret: checked_secret(body.signature_secret.ok_or_else(|| missing("signatureSecret"))?)?,
        created_at: Timestamp::now(),
    };
    app.fleet.store.save_webhook(&webhook).await?;
    Ok((StatusCode::CREATED, Json(shown(&webhook))))
}

pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<Value>, ApiError> {
    Ok(Json(app.fleet.store.list_webhooks(&caller.team).await?.iter().map(shown).collect()))
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(shown(&find(&app.fleet.store, &caller, &id).await?)))
}

pub(super) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let mut webhook = find(&app.fleet.store, &caller, &id).await?;
    let body: WebhookBody = body.parse()?;
    if let Some(name) = body.name {
        webhook.name = checked_name(name)?;
    }
    if let Some(url) = body.url {
        webhook.url = checked_url(&app, &caller, url).await?;
    }
    if let Some(events) = body.events {
        webhook.events = checked_events(&events)?;
    }
    if let Some(secret) = body.signature_secret {
        webhook.secret = checked_secret(secret)?;
    }
    webhook.enabled = body.enabled.unwrap_or(webhook.enabled);
    app.fleet.store.save_webhook(&webhook).await?;
    Ok(Json(shown(&webhook)))
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let removed = app.fleet.store.remove_webhook(&caller.team, &id).await?;
    if removed { Ok(Json(json!({ "id": id }))) } else { Err(no_such_webhook()) }
}

async fn find(store: &Store, caller: &Caller, id: &str) -> Result<Webhook, ApiError> {
    store.find_webhook(&caller.team, id).await?.ok_or_else(no_such_webhook)
}

fn no_such_webhook() -> ApiError {
    ApiError::not_found("no such webhook")
}

fn checked_name(name: String) -> Result<String, ApiError> {
    if (1..=128).contains(&name.chars().count()) {
        return Ok(name);
    }
    Err(ApiError::bad_request("name must have 1 to 128 characters"))
}

/// Looked at here to tell the caller, and again before every delivery: names change where they point.
async fn checked_url(app: &App, caller: &Caller, url: String) -> Result<String, ApiError> {
    let refused = |error: TargetError| ApiError::bad_request(error.to_string());
    let target = Target::parse(&url).map_err(refused)?;
    let share = app.lookups.take(&caller.team).ok_or_else(too_many_lookups)?;
    let policy = app.settings.webhook_policy.clone();
    // In a task of its own: a lookup goes on after the client has gone, and counts until it ends.
    let looking = tokio::spawn(async move {
        let _share = share;
        target.resolve(&policy).await.map(drop)
    });
    match looking.await {
        Ok(looked_up) => looked_up.map_err(refused)?,
        Err(error) => return Err(ApiError::internal(&error)),
    }
    Ok(url)
}

fn too_many_lookups() -> ApiError {
    let message = "too many names of hosts are being looked up for the team";
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).retry_in(Duration::from_secs(5))
}

fn checked_events(events: &[String]) -> Result<Vec<EventType>, ApiError> {
    if events.is_empty() {
        return Err(ApiError::bad_request("events must name at least one event type"));
    }
    let parse = |text: &String| {
        EventType::parse(text).ok_or_else(|| ApiError::bad_request(format!("unknown event type {text:?}")))
    };
    events.iter().map(parse).collect()
}

fn checked_secret(secret: String) -> Result<Secret, ApiError> {
    if (MIN_SECRET..=1024).contains(&secret.len()) {
        return Ok(Secret(secret));
    }
    Err(ApiError::bad_request(format!("signatureSecret must have at least {MIN_SECRET} characters")))
}

/// The secret is never shown again.
fn shown(webhook: &Webhook) -> Value {
    let events: Vec<&str> = webhook.events.iter().map(|kind| kind.text()).collect();
    json!({
        "id": webhook.id,
        "teamId": webhook.team,
        "name": webhook.name,
        "url": webhook.url,
        "enabled": webhook.enabled,
        "events": events,
        "createdAt": webhook.created_at,
    })
}
