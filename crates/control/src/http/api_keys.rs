//! `/api-keys`: make, list, rename, replace and revoke the caller's keys. A key is shown once, in the answer that makes it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use isopod_store::secrets::new_api_key;
use isopod_store::{ApiKey, KeyGrant, Rotation, Scope, Store};
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::App;
use super::auth::Caller;
use super::body::JsonBody;
use super::error::ApiError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NameBody {
    name: String,
}

/// E2B's field is the name; the others are ours.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewKeyBody {
    name: String,
    scope: Option<String>,
    agent_id: Option<String>,
    expires_in: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RotateBody {
    overlap: Option<u64>,
}

/// Enough to change it everywhere on the next working day.
const DEFAULT_OVERLAP: Duration = Duration::from_secs(24 * 3600);
/// A hundred years.
const MAX_SECONDS: u64 = 100 * 365 * 24 * 3600;

fn checked_name(name: &str) -> Result<String, ApiError> {
    let length = name.trim().chars().count();
    if (1..=128).contains(&length) {
        return Ok(name.trim().to_owned());
    }
    Err(ApiError::bad_request("name must have 1 to 128 characters"))
}

fn checked_seconds(name: &str, seconds: u64) -> Result<Duration, ApiError> {
    if seconds > MAX_SECONDS {
        return Err(ApiError::bad_request(format!("{name} must be at most {MAX_SECONDS} seconds")));
    }
    Ok(Duration::from_secs(seconds))
}

impl NewKeyBody {
    /// What the key is to be good for: never more than the caller's own.
    fn grant(&self, caller: &Caller) -> Result<KeyGrant, ApiError> {
        let scope = Scope::parse(self.scope.as_deref().unwrap_or("team"), self.agent_id.as_deref());
        let wrong = "scope must be team, read_only, admin, or agent with an agentId";
        let scope = scope.ok_or_else(|| ApiError::bad_request(wrong))?;
        if scope.agent().is_some_and(|agent| agent.is_empty() || agent.len() > 128) {
            return Err(ApiError::bad_request("agentId must have 1 to 128 characters"));
        }
        if scope == Scope::Admin && caller.scope != Scope::Admin {
            return Err(ApiError::forbidden("only an admin's key makes one").with_code("scope_forbids"));
        }
        let lifetime = self.expires_in.map(|seconds| checked_seconds("expiresIn", seconds)).transpose()?;
        Ok(KeyGrant { scope, lifetime })
    }
}

pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Json<Value>, ApiError> {
    let keys = app.fleet.store.list_keys(&caller.team).await?;
    Ok(Json(keys.iter().map(shown).collect()))
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let body = body.parse::<NewKeyBody>()?;
    let (name, grant) = (checked_name(&body.name)?, body.grant(&caller)?);
    let key = new_api_key();
    let made = app.fleet.store.insert_key_with(&caller.team, &name, &key, &grant).await?;
    let mut answer = shown(&made);
    answer["key"] = json!(key.0);
    Ok((StatusCode::CREATED, Json(answer)))
}

pub(super) async fn rename(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let name = checked_name(&body.parse::<NameBody>()?.name)?;
    refuse_admins_key(&app.fleet.store, &caller, &id).await?;
    let found = app.fleet.store.rename_key(&caller.team, &id, &name).await?;
    if found { Ok(StatusCode::ACCEPTED) } else { Err(ApiError::not_found("no such API key")) }
}

pub(super) async fn revoke(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    refuse_admins_key(&app.fleet.store, &caller, &id).await?;
    let found = app.fleet.store.revoke_key(&caller.team, &id).await?;
    if found { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::not_found("no such API key")) }
}

/// `POST /api-keys/{id}/rotate`: a new key like this one, which counts on until the overlap is over.
pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let body: RotateBody = body.parse()?;
    let overlap = body.overlap.map(|seconds| checked_seconds("overlap", seconds)).transpose()?;
    let overlap = overlap.unwrap_or(DEFAULT_OVERLAP);
    let is_admin = caller.scope == Scope::Admin;
    match app.fleet.store.rotate_key(&caller.team, &id, overlap, is_admin).await? {
        Rotation::Done(made) => {
            let (info, key) = *made;
            let mut answer = json!(info);
            answer["key"] = json!(key.0);
            Ok((StatusCode::CREATED, Json(answer)))
        }
        Rotation::NotFound => Err(ApiError::not_found("no such API key")),
        Rotation::Forbidden => Err(only_admins()),
    }
}

/// A team's key must not change or end the keys of those above it.
async fn refuse_admins_key(store: &Store, caller: &Caller, id: &str) -> Result<(), ApiError> {
    if caller.scope == Scope::Admin {
        return Ok(());
    }
    let keys = store.list_keys(&caller.team).await?;
    match keys.iter().any(|key| key.id == id && key.scope == Scope::Admin) {
        true => Err(only_admins()),
        false => Ok(()),
    }
}

fn only_admins() -> ApiError {
    ApiError::forbidden("this is an admin's key").with_code("scope_forbids")
}

fn shown(key: &ApiKey) -> Value {
    let (prefix, rest) = match key.mask.prefix.strip_prefix("e2b_") {
        Some(rest) => ("e2b_", rest),
        None => ("", key.mask.prefix.as_str()),
    };
    let length = usize::try_from(key.mask.length).unwrap_or_default().saturating_sub(prefix.len());
    json!({
        "id": key.id,
        "name": key.name,
        "mask": {
            "prefix": prefix,
            "valueLength": length,
            "maskedValuePrefix": rest,
            "maskedValueSuffix": key.mask.suffix,
        },
        "createdAt": key.created_at,
        "createdBy": null,
        "lastUsed": key.last_used_at,
        "scope": key.scope.text(),
        "agentId": key.scope.agent(),
        "expiresAt": key.expires_at,
    })
}
