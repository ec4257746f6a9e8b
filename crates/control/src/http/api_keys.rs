//! `/api-keys`: create, list, rename, rotate and revoke the caller's keys. The key itself is returned only once, when
//! it is created.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use isopod_api::{ApiError, Caller, Created, Empty, JsonBody, Listing, NoContent};
use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_api_key;
use isopod_store::{ApiKey, KeyGrant, Rotation, Scope, Store};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::App;

#[derive(Deserialize, ToSchema)]
#[schema(as = ApiKeyName)]
pub(super) struct NameBody {
    #[schema(min_length = 1, max_length = 128)]
    name: String,
}

/// E2B defines only the name. Unknown fields are refused: one that limits the key, or a misspelt one of these, must not
/// yield a key for everything.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = NewApiKey)]
pub(super) struct NewKeyBody {
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    /// `team`, `read_only`, `admin` or `agent`.
    scope: Option<String>,
    /// The agent's id, required with the scope `agent`.
    agent_id: Option<String>,
    /// The key's lifetime in seconds.
    expires_in: Option<u64>,
}

/// E2B has no such route, so unknown fields are refused.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ApiKeyRotation)]
pub(super) struct RotateBody {
    /// How many seconds the old key stays valid.
    overlap: Option<u64>,
}

/// An API key.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ApiKey)]
pub(super) struct KeyView {
    id: String,
    name: String,
    mask: MaskView,
    created_at: Timestamp,
    /// Always null: keys belong to teams, not to people.
    created_by: Option<String>,
    last_used: Option<Timestamp>,
    scope: &'static str,
    agent_id: Option<String>,
    expires_at: Option<Timestamp>,
    /// The key itself. Only in the response that creates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
}

/// A key that replaces another one.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RotatedApiKey)]
pub(super) struct RotatedKey {
    id: String,
    name: String,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    last_used: Option<String>,
    scope: String,
    agent_id: Option<String>,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// The key itself, returned only here.
    key: String,
}

/// The parts of a key that are shown later.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ApiKeyMask)]
struct MaskView {
    prefix: &'static str,
    value_length: usize,
    masked_value_prefix: String,
    masked_value_suffix: String,
}

/// Enough time to replace the key everywhere on the next working day.
const DEFAULT_OVERLAP: Duration = Duration::from_secs(24 * 3600);
/// One hundred years.
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
    /// Returns the permissions of the new key. They never exceed the caller's own.
    fn grant(&self, caller: &Caller) -> Result<KeyGrant, ApiError> {
        let scope = Scope::parse(self.scope.as_deref().unwrap_or("team"), self.agent_id.as_deref());
        let wrong = "scope must be team, read_only, admin, or agent with an agentId";
        let scope = scope.ok_or_else(|| ApiError::bad_request(wrong))?;
        if scope.agent().is_some_and(|agent| agent.is_empty() || agent.len() > 128) {
            return Err(ApiError::bad_request("agentId must have 1 to 128 characters"));
        }
        if scope == Scope::Admin && caller.scope != Scope::Admin {
            return Err(ApiError::forbidden("only an admin key can create an admin key").with_code("scope_forbids"));
        }
        let lifetime = self.expires_in.map(|seconds| checked_seconds("expiresIn", seconds)).transpose()?;
        Ok(KeyGrant { scope, lifetime })
    }
}

pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Result<Listing<KeyView>, ApiError> {
    let keys = app.fleet.store.list_keys(&caller.team).await?;
    Ok(Listing(keys.iter().map(shown).collect()))
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    body: JsonBody<NewKeyBody>,
) -> Result<Created<KeyView>, ApiError> {
    let body = body.parse()?;
    let (name, grant) = (checked_name(&body.name)?, body.grant(&caller)?);
    let key = new_api_key();
    let made = app.fleet.store.insert_key_with(&caller.team, &name, &key, &grant).await?;
    Ok(Created(KeyView { key: Some(key.0), ..shown(&made) }))
}

pub(super) async fn rename(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<NameBody>,
) -> Result<Empty<202>, ApiError> {
    let name = checked_name(&body.parse()?.name)?;
    refuse_admins_key(&app.fleet.store, &caller, &id).await?;
    let found = app.fleet.store.rename_key(&caller.team, &id, &name).await?;
    if found { Ok(Empty) } else { Err(ApiError::not_found("no such API key")) }
}

pub(super) async fn revoke(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<NoContent, ApiError> {
    refuse_admins_key(&app.fleet.store, &caller, &id).await?;
    let found = app.fleet.store.revoke_key(&caller.team, &id).await?;
    if found { Ok(Empty) } else { Err(ApiError::not_found("no such API key")) }
}

/// `POST /api-keys/{id}/rotate`: creates a key like this one. The old key stays valid until the overlap ends.
pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    body: JsonBody<RotateBody>,
) -> Result<Created<RotatedKey>, ApiError> {
    let body = body.parse()?;
    let overlap = body.overlap.map(|seconds| checked_seconds("overlap", seconds)).transpose()?;
    let overlap = overlap.unwrap_or(DEFAULT_OVERLAP);
    let is_admin = caller.scope == Scope::Admin;
    match app.fleet.store.rotate_key(&caller.team, &id, overlap, is_admin).await? {
        Rotation::Done(made) => {
            let (info, key) = *made;
            Ok(Created(RotatedKey {
                id: info.id,
                name: info.name,
                created_at: info.created_at,
                last_used: info.last_used,
                scope: info.scope,
                agent_id: info.agent,
                expires_at: info.expires_at,
                key: key.0,
            }))
        }
        Rotation::NotFound => Err(ApiError::not_found("no such API key")),
        Rotation::Forbidden => Err(only_admins()),
    }
}

/// A team's key must not change or revoke admin keys.
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
    ApiError::forbidden("this is an admin key").with_code("scope_forbids")
}

fn shown(key: &ApiKey) -> KeyView {
    let (prefix, rest) = match key.mask.prefix.strip_prefix("e2b_") {
        Some(rest) => ("e2b_", rest),
        None => ("", key.mask.prefix.as_str()),
    };
    let length = usize::try_from(key.mask.length).unwrap_or_default().saturating_sub(prefix.len());
    KeyView {
        id: key.id.clone(),
        name: key.name.clone(),
        mask: MaskView {
            prefix,
            value_length: length,
            masked_value_prefix: rest.to_owned(),
            masked_value_suffix: key.mask.suffix.clone(),
        },
        created_at: key.created_at,
        created_by: None,
        last_used: key.last_used_at,
        scope: key.scope.text(),
        agent_id: key.scope.agent().map(str::to_owned),
        expires_at: key.expires_at,
        key: None,
    }
}
