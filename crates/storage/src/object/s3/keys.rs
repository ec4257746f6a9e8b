//! The source of the bucket's keys: given once, or read from a file that is renewed by others.
//!
//! The file has the format of Amazon's tools (`[profile]`, `aws_access_key_id = …`). It is checked at every request and
//! read again when it has changed, so expiring keys can be replaced without notifying anyone.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::sign::Credentials;
use crate::object::StoreError;

/// The source of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keys {
    Given(Credentials),
    File { path: PathBuf, profile: String },
}

impl From<Credentials> for Keys {
    fn from(credentials: Credentials) -> Self {
        Self::Given(credentials)
    }
}

/// The current keys.
#[derive(Debug)]
pub(super) struct KeyRing {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    source: Keys,
    /// The content of the file, and the time when it was written.
    read: Option<(SystemTime, Credentials)>,
}

impl KeyRing {
    pub(super) fn new(source: Keys) -> Self {
        Self { state: Mutex::new(State { source, read: None }) }
    }

    pub(super) fn replace(&self, credentials: Credentials) {
        let mut state = self.state.lock().expect("no panic while held");
        state.source = Keys::Given(credentials);
    }

    pub(super) fn current(&self) -> Result<Credentials, StoreError> {
        let mut state = self.state.lock().expect("no panic while held");
        let State { source, read } = &mut *state;
        let (path, profile) = match source {
            Keys::Given(credentials) => return Ok(credentials.clone()),
            Keys::File { path, profile } => (path, profile),
        };
        let failed = |source| StoreError::Local { what: "read keys from", path: path.display().to_string(), source };
        let written = std::fs::metadata(&*path).and_then(|file| file.modified()).map_err(failed);
        match (&written, &*read) {
            (Ok(written), Some((when, credentials))) if when == written => return Ok(credentials.clone()),
            // The file is being replaced or was removed. The known keys may still be valid.
            (Err(_), Some((_, credentials))) => return Ok(credentials.clone()),
            _ => {}
        }
        let credentials = read_file(path, profile)?;
        *read = Some((written?, credentials.clone()));
        Ok(credentials)
    }
}

fn read_file(path: &Path, profile: &str) -> Result<Credentials, StoreError> {
    let failed = |source| StoreError::Local { what: "read keys from", path: path.display().to_string(), source };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    parse(&text, profile)
        .ok_or_else(|| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, "the profile has no keys")))
}

fn parse(text: &str, profile: &str) -> Option<Credentials> {
    let header = format!("[{profile}]");
    let lines = text.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with('[')).collect();
    let value = |name: &str| {
        let pairs = lines.iter().filter_map(|line| line.split_once('='));
        let mut found = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned());
        found.next().filter(|value| !value.is_empty())
    };
    Some(Credentials {
        access_key: value("aws_access_key_id")?,
        secret_key: value("aws_secret_access_key")?,
        session_token: value("aws_session_token"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# mine\n[other]\naws_access_key_id=O\naws_secret_access_key=P\n\n[default]\n\
        aws_access_key_id = A\naws_secret_access_key = B=\naws_session_token = C\n[last]\n";

    #[test]
    fn a_profile_is_read_and_no_other() {
        let keys = parse(FILE, "default").unwrap();
        assert_eq!((keys.access_key.as_str(), keys.secret_key.as_str()), ("A", "B="));
        assert_eq!(keys.session_token.as_deref(), Some("C"));
        assert_eq!(parse(FILE, "other").unwrap().session_token, None);
        assert!(parse(FILE, "last").is_none() && parse(FILE, "nobody").is_none());
    }

    #[test]
    fn a_renewed_file_counts_and_a_missing_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials");
        let ring = KeyRing::new(Keys::File { path: path.clone(), profile: "default".to_owned() });
        assert!(ring.current().is_err());
        std::fs::write(&path, FILE).unwrap();
        assert_eq!(ring.current().unwrap().access_key, "A");
        std::fs::write(&path, FILE.replace("= A", "= NEW")).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(ring.current().unwrap().access_key, "NEW");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(ring.current().unwrap().access_key, "NEW");
        ring.replace(Credentials { access_key: "GIVEN".into(), secret_key: "x".into(), session_token: None });
        assert_eq!(ring.current().unwrap().access_key, "GIVEN");
    }
}
