//! Who is asking. A key is looked up by its hash, a person's token is checked against the team it is shown for; what
//! another team has does not exist for the caller.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::request::Parts;
use isopod_wire::SandboxId;
use isopod_wire::node::Secret;

use super::error::ApiError;
use super::noted::Asker;
use crate::app::App;
use crate::clock::Timestamp;
use crate::identity::{TokenCheck, TokenError};
use crate::lifecycle::Sandbox;
use crate::secrets::hash_key;
use crate::store::{Scope, TeamId, Thing};

/// The team behind a request, and what it may do.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) team: TeamId,
    pub(super) team_name: String,
    /// The key that was shown; empty where a person's token was.
    pub(super) key: Secret,
    pub(super) scope: Scope,
    /// Who it is, for the records: a key's id or a person's.
    pub(super) actor: String,
}

/// The time of last use is for people; a minute more or less is not worth a write per request.
const TOUCH_EVERY: Duration = Duration::from_secs(60);
/// Below it, keys of every scope count.
const SERVICE_PATH: &str = "/api/v1/";
const TEAM_HEADER: &str = "x-supabase-team";
const TOKEN_HEADER: &str = "x-supabase-token";

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        // The service has looked already, for its audit.
        if let Some(known) = parts.extensions.get::<Self>() {
            return Ok(known.clone());
        }
        let caller = match (&app.tokens, parts.headers.get(TOKEN_HEADER)) {
            (Some(check), Some(_)) => by_token(app, check, &parts.headers).await?,
            _ => by_key(app, &parts.headers).await?,
        };
        if let Some(asker) = parts.extensions.get::<Asker>() {
            asker.is(&caller);
        }
        let is_limited = matches!(caller.scope, Scope::Agent(_) | Scope::ReadOnly);
        if is_limited && !parts.uri.path().starts_with(SERVICE_PATH) {
            // E2B's answers hold the tokens of sandboxes, with which anything can be done to them.
            let message = format!("a key of scope {} is for {SERVICE_PATH} only", caller.scope.text());
            return Err(ApiError::forbidden(message).with_code("scope_forbids"));
        }
        Ok(caller)
    }
}

async fn by_key(app: &App, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let key = key_of(headers)
        .ok_or_else(|| ApiError::unauthorized("authorization header is missing: send your key as X-API-Key"))?;
    let store = &app.fleet.store;
    let owner = store.find_key(&hash_key(key)).await?.ok_or_else(|| ApiError::unauthorized("invalid API key"))?;
    let last_used = owner.last_used_at.unwrap_or(Timestamp(0));
    if last_used.until(Timestamp::now()) >= TOUCH_EVERY {
        let (store, key_id) = (store.clone(), owner.key_id.clone());
        tokio::spawn(async move {
            if let Err(error) = store.touch_key(&key_id).await {
                tracing::debug!(error = crate::chain(&error), "the use of a key was not recorded");
            }
        });
    }
    let actor = format!("key:{}", owner.key_id);
    let key = Secret(key.to_owned());
    Ok(Caller { team: owner.team, team_name: owner.team_name, key, scope: owner.scope, actor })
}

/// A person in a team's name. The team is one that the person belongs to, by the token's own word or by our records.
async fn by_token(app: &App, check: &TokenCheck, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let claims = check.check(text(TOKEN_HEADER), Timestamp::now()).await.map_err(|error| {
        if let TokenError::Keys(_) = &error {
            tracing::error!(error = crate::chain(&error), "tokens cannot be checked");
        }
        ApiError::unauthorized(error.to_string()).with_code("invalid_token")
    })?;
    let team = text(TEAM_HEADER);
    let store = &app.fleet.store;
    let name = store.find_team(team).await?;
    let is_member = claims.names_team(team) || store.is_member(team, &claims.sub).await?;
    match name {
        Some(team_name) if is_member => Ok(Caller {
            team: TeamId(team.to_owned()),
            team_name,
            key: Secret(String::new()),
            scope: Scope::Team,
            actor: format!("user:{}", claims.sub),
        }),
        // Whether there is such a team is none of the caller's business.
        _ => Err(ApiError::forbidden("you are no member of this team").with_code("not_a_member")),
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
    pub(super) async fn sandbox(&self, app: &App, id: &str) -> Result<Arc<Sandbox>, ApiError> {
        let not_found = || ApiError::sandbox_not_found(id);
        let parsed = parse_id(id).ok_or_else(not_found)?;
        let found = app.fleet.find_of(&self.team, &parsed);
        // A sandbox on its way out is gone for those who ask.
        if let Some(found) = found.filter(|sandbox| sandbox.view().row.state.shown().is_some()) {
            return Ok(found);
        }
        app.fleet.store.check_here(Thing::Sandbox(&parsed, Some(&self.team))).await?;
        Err(not_found())
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
