//! Identifies callers. A key is looked up by its hash. A user's token is checked against the team that the request
//! names. Resources of other teams do not exist for the caller.

use std::time::Duration;

use axum::extract::FromRequestParts;
use http::request::Parts;
use http::{Extensions, HeaderMap};
use isopod_store::clock::Timestamp;
use isopod_store::secrets::hash_key;
use isopod_store::{Scope, Store, TeamId};
use isopod_wire::compat::{TEAM_HEADER, TOKEN_HEADER};
use isopod_wire::node::Secret;

use crate::describe::DescribeInput;
use crate::error::ApiError;
use crate::reply_budget::ReplyBudget;
use isopod_identity::{TokenCheck, TokenError};

/// The team of a request, and its permissions.
#[derive(Clone, Debug)]
pub struct Caller {
    pub team: TeamId,
    pub team_name: String,
    /// The key of the request, or empty if it has a user's token.
    pub key: Secret,
    pub scope: Scope,
    /// The id of the key or the user, for the records.
    pub actor: String,
}

/// The time of last use is informational, so it is recorded at most once a minute.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    /// Only requests that passed the route's access check have a caller.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let checked = parts.extensions.get::<Self>().cloned();
        checked.ok_or_else(|| ApiError::forbidden("this route declares no access").with_code("scope_forbids"))
    }
}

/// The route's rule describes the required credentials.
impl DescribeInput for Caller {}

/// Identifies callers by their credentials: a team's key, or a user's token and team.
#[derive(Debug)]
pub struct Authenticator {
    store: Store,
    /// `None` if only keys are accepted.
    pub tokens: Option<TokenCheck>,
    /// Whether `/metrics` requires no key.
    pub(crate) open_metrics: bool,
    /// The replies that callers have not read yet.
    pub(crate) replies: ReplyBudget,
}

impl Authenticator {
    pub fn new(store: Store, tokens: Option<TokenCheck>, open_metrics: bool) -> Self {
        Self { store, tokens, open_metrics, replies: ReplyBudget::default() }
    }

    /// Returns the caller. `known` contains it if it was identified before.
    pub async fn identify(&self, headers: &HeaderMap, known: &Extensions) -> Result<Caller, ApiError> {
        if let Some(known) = known.get::<Caller>() {
            return Ok(known.clone());
        }
        match (&self.tokens, token_of(headers)) {
            (Some(check), Some(token)) => self.by_token(check, token, headers).await,
            _ => self.by_key(headers).await,
        }
    }

    async fn by_key(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let key = key_of(headers)
            .ok_or_else(|| ApiError::unauthorized("authorization header is missing: send your key as X-API-Key"))?;
        let store = &self.store;
        let owner = store.find_key(&hash_key(key)).await?.ok_or_else(|| ApiError::unauthorized("invalid API key"))?;
        let last_used = owner.last_used_at.unwrap_or(Timestamp(0));
        if last_used.until(Timestamp::now()) >= TOUCH_EVERY {
            let (store, key_id) = (store.clone(), owner.key_id.clone());
            tokio::spawn(async move {
                if let Err(error) = store.touch_key(&key_id).await {
                    tracing::debug!(error = isopod_wire::error_chain(&error), "could not record the use of a key");
                }
            });
        }
        let actor = format!("key:{}", owner.key_id);
        let key = Secret(key.to_owned());
        Ok(Caller { team: owner.team, team_name: owner.team_name, key, scope: owner.scope, actor })
    }

    /// Identifies a user acting for a team. The user must belong to the team, according to the token or to our records.
    async fn by_token(&self, check: &TokenCheck, token: &str, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let claims = check.check(token, Timestamp::now()).await.map_err(|error| {
            if let TokenError::Keys(_) = &error {
                tracing::error!(error = isopod_wire::error_chain(&error), "could not check a token");
            }
            ApiError::unauthorized(error.to_string()).with_code("invalid_token")
        })?;
        let named = headers.get(TEAM_HEADER).map(|value| value.to_str().unwrap_or_default());
        let Some(team) = named.or_else(|| claims.only_team()) else {
            let message = format!("the token names no team, or several: send the team's id as {TEAM_HEADER}");
            return Err(ApiError::forbidden(message).with_code("not_a_member"));
        };
        let store = &self.store;
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
            // Do not reveal whether the team exists.
            _ => Err(ApiError::forbidden("you are not a member of this team").with_code("not_a_member")),
        }
    }
}

fn key_of(headers: &HeaderMap) -> Option<&str> {
    let key = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    key.or_else(|| bearer_of(headers)).filter(|key| !key.is_empty())
}

/// A user's token: in its own header, or as the bearer, where only a token has dots.
fn token_of(headers: &HeaderMap) -> Option<&str> {
    match headers.get(TOKEN_HEADER) {
        Some(token) => Some(token.to_str().unwrap_or_default()),
        None if headers.contains_key("x-api-key") => None,
        None => bearer_of(headers).filter(|token| token.contains('.')),
    }
}

fn bearer_of(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get("authorization")?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
