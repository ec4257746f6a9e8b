//! `/api-keys`: make, list, rename and revoke the caller's keys. A key is shown once, in the answer that makes it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::auth::Caller;
use super::body::JsonBody;
use super::error::ApiError;
use crate::app::App;
use crate::secrets::new_api_key;
use crate::store::ApiKey;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NameBody {
    name: String,
}

impl NameBody {
    fn checked(self) -> Result<String, ApiError> {
        let length = self.name.trim().chars().count();
        if (1..=128).contains(&length) {
            return Ok(self.name.trim().to_owned());
        }
        Err(ApiError::bad_request("name must have 1 to 128 characters"))
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
    let name = body.parse::<NameBody>()?.checked()?;
    let key = new_api_key();
    let made = app.fleet.store.insert_key(&caller.team, &name, &key).await?;
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
    let name = body.parse::<NameBody>()?.checked()?;
    let found = app.fleet.store.rename_key(&caller.team, &id, &name).await?;
    if found { Ok(StatusCode::ACCEPTED) } else { Err(ApiError::not_found("no such API key")) }
}

pub(super) async fn revoke(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let found = app.fleet.store.revoke_key(&caller.team, &id).await?;
    if found { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::not_found("no such API key")) }
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
    })
}
