//! Who has signed in. A session is in the browser's cookie, encrypted, so that it survives a restart of the server. Only
//! sessions that ended early are remembered here.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use isopod_wire::compat::{TEAM_HEADER, TOKEN_HEADER};
use serde::{Deserialize, Serialize};

use crate::seal::{SealKey, random_text};

/// After this time, the user signs in again.
pub(crate) const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// Browsers drop larger cookies without a word.
pub(crate) const MAX_COOKIE: usize = 3800;
const PURPOSE: &str = "isopod dashboard session 1";
/// More of them are forgotten, the oldest first.
const MAX_SIGNED_OUT: usize = 10_000;

/// What the user signed in with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Credentials {
    Key(String),
    Token { token: String, team: String },
}

/// What the credentials are good for. It only decides what pages offer: the API checks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Admin,
    Team,
    /// A key that reads only, or that belongs to an agent.
    Limited,
}

/// A signed-in browser.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) credentials: Credentials,
    pub(crate) role: Role,
    /// The name of the team, for people.
    pub(crate) team: String,
    /// Every change must carry it.
    pub(crate) csrf: String,
    /// In seconds since 1970.
    ends_at: u64,
}

impl Credentials {
    /// Adds them to a request for the API. Does nothing if they can't be sent; the API then says that they are missing.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        let mut set = |name: HeaderName, value: &str| {
            if let Ok(mut value) = HeaderValue::from_str(value) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        };
        match self {
            Self::Key(key) => set(HeaderName::from_static("x-api-key"), key),
            Self::Token { token, team } => {
                for (name, value) in [(TOKEN_HEADER, token), (TEAM_HEADER, team)] {
                    if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                        set(name, value);
                    }
                }
            }
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key(…)",
            Self::Token { .. } => "Token(…)",
        })
    }
}

impl Session {
    pub(crate) fn begin(credentials: Credentials, role: Role, team: String) -> Self {
        let ends_at = now() + LIFETIME.as_secs();
        Self { id: random_text(), credentials, role, team, csrf: random_text(), ends_at }
    }

    /// The value of its cookie.
    pub(crate) fn sealed(&self, key: &SealKey) -> String {
        key.seal(PURPOSE, &serde_json::to_string(self).unwrap_or_default())
    }

    /// Opens a cookie. `None` if it isn't ours, or if the session is over.
    pub(crate) fn open(cookie: &str, key: &SealKey, signed_out: &SignedOut) -> Option<Self> {
        let session: Self = serde_json::from_str(&key.open(PURPOSE, cookie)?).ok()?;
        (session.ends_at > now() && !signed_out.contains(&session.id)).then_some(session)
    }
}

/// Sessions that were signed out before their time. A copy of such a cookie is worth nothing while this server runs.
#[derive(Debug, Default)]
pub(crate) struct SignedOut(Mutex<HashMap<String, u64>>);

impl SignedOut {
    pub(crate) fn add(&self, session: &Session) {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.len() >= MAX_SIGNED_OUT {
            let now = now();
            ended.retain(|_, ends_at| *ends_at > now);
        }
        if ended.len() >= MAX_SIGNED_OUT
            && let Some(oldest) = ended.iter().min_by_key(|(_, ends_at)| **ends_at).map(|(id, _)| id.clone())
        {
            ended.remove(&oldest);
        }
        ended.insert(session.id.clone(), session.ends_at);
    }

    fn contains(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session::begin(Credentials::Key("e2b_secret".to_owned()), Role::Team, "Team".to_owned())
    }

    #[test]
    fn a_session_survives_its_cookie_and_ends_when_it_is_signed_out() {
        let (key, ended, session) = (SealKey::random(), SignedOut::default(), session());
        let cookie = session.sealed(&key);
        assert_eq!(Session::open(&cookie, &key, &ended).map(|found| found.id), Some(session.id.clone()));
        assert!(Session::open(&cookie, &SealKey::random(), &ended).is_none());
        ended.add(&session);
        assert!(Session::open(&cookie, &key, &ended).is_none());
    }

    #[test]
    fn a_session_ends_by_itself() {
        let (key, ended) = (SealKey::random(), SignedOut::default());
        let over = Session { ends_at: now(), ..session() };
        assert!(Session::open(&over.sealed(&key), &key, &ended).is_none());
    }

    #[test]
    fn what_was_signed_out_takes_bounded_memory() {
        let ended = SignedOut::default();
        for number in 0..MAX_SIGNED_OUT + 10 {
            ended.add(&Session { id: number.to_string(), ..session() });
        }
        assert_eq!(ended.0.lock().unwrap().len(), MAX_SIGNED_OUT);
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = format!("{:?}", session());
        assert!(!shown.contains("e2b_secret"), "{shown}");
    }
}
