//! Who is asking. A key is looked up by its hash; what another team has does not exist for the caller.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::request::Parts;
use isopod_wire::SandboxId;
use isopod_wire::node::Secret;

use super::error::ApiError;
use crate::app::App;
use crate::clock::Timestamp;
use crate::lifecycle::Sandbox;
use crate::secrets::hash_key;
use crate::store::TeamId;

/// The team behind a request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) team: TeamId,
    pub(super) team_name: String,
    pub(super) key: Secret,
}

/// The time of last use is for people; a minute more or less is not worth a write per request.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let key = key_of(&parts.headers)
            .ok_or_else(|| ApiError::unauthorized("authorization header is missing: send your key as X-API-Key"))?;
        let store = &app.fleet.store;
        let owner = store.find_key(&hash_key(key)).await?.ok_or_else(|| ApiError::unauthorized("invalid API key"))?;
        let last_used = owner.last_used_at.unwrap_or(Timestamp(0));
        if last_used.until(Timestamp::now()) >= TOUCH_EVERY {
            let (store, key_id) = (store.clone(), owner.key_id);
            tokio::spawn(async move {
                if let Err(error) = store.touch_key(&key_id).await {
                    tracing::debug!(error = crate::chain(&error), "the use of a key was not recorded");
                }
            });
        }
        Ok(Self { team: owner.team, team_name: owner.team_name, key: Secret(key.to_owned()) })
    }
}

fn key_of(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = || {
        let (scheme, token) = text("authorization")?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    };
    text("x-api-key").or_else(bearer).filter(|key| !key.is_empty())
}

impl Caller {
    /// The caller's live sandbox with this id.
    pub(super) fn sandbox(&self, app: &App, id: &str) -> Result<Arc<Sandbox>, ApiError> {
        let found = parse_id(id).and_then(|id| app.fleet.find_of(&self.team, &id));
        // A sandbox on its way out is gone for those who ask.
        let found = found.filter(|sandbox| sandbox.view().row.state.shown().is_some());
        found.ok_or_else(|| ApiError::sandbox_not_found(id))
    }

    /// The id of a sandbox that the caller has or had.
    pub(super) async fn known_sandbox(&self, app: &App, id: &str) -> Result<SandboxId, ApiError> {
        let not_found = || ApiError::sandbox_not_found(id);
        let parsed = parse_id(id).ok_or_else(not_found)?;
        if app.fleet.find_of(&self.team, &parsed).is_some() {
            return Ok(parsed);
        }
        let row = app.fleet.store.find_sandbox(&self.team, &parsed).await?;
        row.map(|row| row.id).ok_or_else(not_found)
    }
}

/// Old SDKs append a client id after a dash.
fn parse_id(text: &str) -> Option<SandboxId> {
    text.split('-').next()?.parse().ok()
}
