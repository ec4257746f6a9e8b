//! The claims of a token.

use std::time::Duration;

use isopod_store::clock::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::error::TokenError;

/// The claims that matter here.
#[derive(Clone, Debug, Deserialize)]
pub struct Claims {
    /// The subject.
    pub sub: String,
    exp: Option<f64>,
    nbf: Option<f64>,
    iss: Option<String>,
    aud: Option<Value>,
    /// The teams, if the identity service puts them at the top level.
    teams: Option<Vec<String>>,
    /// Data that only the identity service can write. `user_metadata`, which users write themselves, is not read.
    app_metadata: Option<AppMetadata>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct AppMetadata {
    teams: Option<Vec<String>>,
    team_id: Option<String>,
}

/// The maximum difference between the clocks of two machines.
const LEEWAY: Duration = Duration::from_secs(30);

impl Claims {
    /// Whether the token itself says that its subject belongs to the team.
    pub fn names_team(&self, team: &str) -> bool {
        let metadata = self.app_metadata.clone().unwrap_or_default();
        let lists = [self.teams.as_ref(), metadata.teams.as_ref()];
        lists.into_iter().flatten().flatten().any(|one| one == team) || metadata.team_id.as_deref() == Some(team)
    }

    /// The only team that the token names.
    pub fn only_team(&self) -> Option<&str> {
        let metadata = self.app_metadata.as_ref();
        let lists = [self.teams.as_ref(), metadata.and_then(|metadata| metadata.teams.as_ref())];
        let mut named = lists.into_iter().flatten().flatten().map(String::as_str).collect::<Vec<_>>();
        named.extend(metadata.and_then(|metadata| metadata.team_id.as_deref()));
        named.dedup();
        match named.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    pub(super) fn check_time(&self, now: Timestamp) -> Result<(), TokenError> {
        // A token without an expiry could never be revoked.
        let end = self.exp.map(moment).ok_or(TokenError::Expired)?;
        if now >= end.plus(LEEWAY) {
            return Err(TokenError::Expired);
        }
        match self.nbf.map(moment) {
            Some(begin) if begin > now.plus(LEEWAY) => Err(TokenError::NotYet),
            _ => Ok(()),
        }
    }

    pub(super) fn check_for(&self, issuer: Option<&str>, audience: Option<&str>) -> Result<(), TokenError> {
        let is_issuer = issuer.is_none_or(|issuer| self.iss.as_deref() == Some(issuer));
        let is_for_us = audience.is_none_or(|audience| match &self.aud {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(many)) => many.iter().any(|one| one == audience),
            _ => false,
        });
        if is_issuer && is_for_us { Ok(()) } else { Err(TokenError::Audience) }
    }
}

/// Converts seconds since 1970, possibly with a fraction. Saturates at the limits of the type.
fn moment(seconds: f64) -> Timestamp {
    Timestamp((seconds * 1000.0) as i64)
}
