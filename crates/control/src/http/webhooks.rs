//! `/events/webhooks`: subscriptions to events.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use isopod_api::{ApiError, Caller, Created, JsonBody, Listing};
use isopod_outbound::{Target, TargetError};
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_uuid;
use isopod_store::{EventType, Store, Webhook};
use isopod_wire::node::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::App;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewWebhook)]
pub(super) struct NewBody {
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    url: String,
    enabled: Option<bool>,
    events: Vec<String>,
    #[schema(min_length = 16, max_length = 1024)]
    signature_secret: String,
}

/// Missing fields stay unchanged.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WebhookChange)]
pub(super) struct ChangeBody {
    #[schema(min_length = 1, max_length = 128)]
    name: Option<String>,
    url: Option<String>,
    enabled: Option<bool>,
    events: Option<Vec<String>>,
    #[schema(min_length = 16, max_length = 1024)]
    signature_secret: Option<String>,
}

/// A webhook. The secret is never returned.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Webhook)]
pub(super) struct WebhookView {
    id: String,
    team_id: String,
    name: String,
    url: String,
    enabled: bool,
    events: Vec<&'static str>,
    created_at: Timestamp,
}

/// The id of the removed webhook.
#[derive(Serialize, ToSchema)]
pub(super) struct RemovedWebhook {
    id: String,
}

const MAX_WEBHOOKS: usize = 50;
const MIN_SECRET: usize = 16;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<NewBody>,
) -> Result<Created<WebhookView>, ApiError> {
    let body = body.parse()?;
    if app.fleet.store.list_webhooks(&caller.team).await?.len() >= MAX_WEBHOOKS {
        return Err(ApiError::bad_request(format!("a team can have at most {MAX_WEBHOOKS} webhooks")));
    }
    let webhook = Webhook {
        id: new_uuid(),
        url: checked_url(&app, &caller, body.url).await?,
        team: caller.team,
        name: checked_name(body.name)?,
        enabled: body.enabled.unwrap_or(true),
        events: checked_events(&body.events)?,
        secret: checked_secret(body.signature_secret)?,
        created_at: Timestamp::now(),
    };
    app.fleet.store.save_webhook(&webhook).await?;
    Ok(Created(shown(&webhook)))
}

pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Listing<WebhookView>, ApiError> {
    Ok(Listing(app.fleet.store.list_webhooks(&caller.team).await?.iter().map(shown).collect()))
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<WebhookView>, ApiError> {
    Ok(Json(shown(&find(&app.fleet.store, &caller, &id).await?)))
}

pub(super) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<ChangeBody>,
) -> Result<Json<WebhookView>, ApiError> {
    let mut webhook = find(&app.fleet.store, &caller, &id).await?;
    let body = body.parse()?;
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
) -> Result<Json<RemovedWebhook>, ApiError> {
    let removed = app.fleet.store.remove_webhook(&caller.team, &id).await?;
    if removed { Ok(Json(RemovedWebhook { id })) } else { Err(no_such_webhook()) }
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

/// Checks the URL in order to inform the caller. It is checked again before every delivery, because DNS entries change.
async fn checked_url(app: &App, caller: &Caller, url: String) -> Result<String, ApiError> {
    let refused = |error: TargetError| ApiError::bad_request(error.to_string());
    let target = Target::parse(&url).map_err(refused)?;
    let share = app.lookups.take(&caller.team).ok_or_else(too_many_lookups)?;
    let policy = app.settings.webhook_policy.clone();
    // In a task of its own: a lookup continues after the client has disconnected, and counts until it ends.
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
    let message = "too many DNS lookups for the team are in progress";
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

fn shown(webhook: &Webhook) -> WebhookView {
    WebhookView {
        id: webhook.id.clone(),
        team_id: webhook.team.0.clone(),
        name: webhook.name.clone(),
        url: webhook.url.clone(),
        enabled: webhook.enabled,
        events: webhook.events.iter().map(|kind| kind.text()).collect(),
        created_at: webhook.created_at,
    }
}
