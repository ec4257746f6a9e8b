//! What to create, and how a backend shows a sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use isopod_store::TeamId;
use isopod_wire::{Limits, SandboxId};

/// The metadata of every sandbox of the service: the key of the create that made it.
pub const CREATE_LABEL: &str = "isopod.create";

/// Identifies one create, however often it is sent. It is a UUID, so that creates of two teams never get each other's
/// sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreateKey(String);

/// The text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a create key is a lowercase UUID")]
pub struct CreateKeyError;

impl CreateKey {
    /// A new key.
    pub fn random() -> Self {
        Self(isopod_store::secrets::new_uuid())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The metadata by which its sandbox is found.
    pub fn label(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(CREATE_LABEL.to_owned(), self.0.clone())])
    }
}

/// Parses a recorded key.
impl FromStr for CreateKey {
    type Err = CreateKeyError;

    fn from_str(text: &str) -> Result<Self, CreateKeyError> {
        let is_allowed = |(at, byte): (usize, u8)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        };
        match text.len() == 36 && text.bytes().enumerate().all(is_allowed) {
            true => Ok(Self(text.to_owned())),
            false => Err(CreateKeyError),
        }
    }
}

impl fmt::Display for CreateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What to create. Use [`CreateSpec::new`]. The fields may be set directly.
#[derive(Clone, Debug)]
pub struct CreateSpec {
    /// Identifies this create.
    pub key: CreateKey,
    /// The key may have been sent before, by a process that died. Then its sandbox is searched first.
    pub sent_before: bool,
    /// The team whose quota a local sandbox counts against. A remote server counts by API key.
    pub team: TeamId,
    /// The template's id or name.
    pub template: String,
    /// How long it lives.
    pub timeout: Duration,
    /// Pause it at the end of that time instead of killing it.
    pub auto_pause: bool,
    /// Its limits. `None` leaves that to the backend. A remote server does not support them and refuses.
    pub limits: Option<Limits>,
    /// Whether it may reach the internet. `None` leaves that to the backend.
    pub allow_internet: Option<bool>,
    /// Metadata to find it by.
    pub metadata: BTreeMap<String, String>,
    /// Variables for every process in it.
    pub env: BTreeMap<String, String>,
}

impl CreateSpec {
    /// A sandbox of this template, for five minutes.
    pub fn new(team: TeamId, template: impl Into<String>) -> Self {
        Self {
            key: CreateKey::random(),
            sent_before: false,
            team,
            template: template.into(),
            timeout: Duration::from_secs(300),
            auto_pause: false,
            limits: None,
            allow_internet: None,
            metadata: BTreeMap::new(),
            env: BTreeMap::new(),
        }
    }

    /// The metadata with the label of this create.
    pub fn labelled_metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = self.metadata.clone();
        metadata.insert(CREATE_LABEL.to_owned(), self.key.to_string());
        metadata
    }
}

/// A live sandbox of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSandbox {
    /// Its id in the backend.
    pub id: SandboxId,
    /// Its template.
    pub template: String,
    /// Whether it runs.
    pub state: BackendState,
    /// When it started.
    pub started_at: SystemTime,
    /// When it expires.
    pub ends_at: SystemTime,
    /// Metadata to find it by.
    pub metadata: BTreeMap<String, String>,
}

/// Whether a sandbox runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendState {
    /// It runs.
    Running,
    /// It is paused.
    Paused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_read_back() {
        let key = CreateKey::random();
        assert_eq!(key.as_str().parse::<CreateKey>(), Ok(key.clone()));
        assert_ne!(key, CreateKey::random());
        let upper = key.as_str().to_uppercase();
        for bad in ["", "agent-1-task-2", &key.as_str()[1..], &key.as_str().replace('-', "0"), &format!("{upper}A")] {
            assert_eq!(bad.parse::<CreateKey>(), Err(CreateKeyError), "{bad:?}");
        }
    }
}
