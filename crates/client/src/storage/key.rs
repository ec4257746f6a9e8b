//! Normalizes keys as the server does, so that paths can be computed without asking it.

use std::hash::{BuildHasher as _, RandomState};

use time::OffsetDateTime;

use super::FileStorage;

/// The first components of an execution's directories.
const DIRS: [&str; 5] = ["artifacts", "temp", "results", "outputs", "logs"];

/// Why a key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It is empty.
    #[error("a key must name a file")]
    Empty,
    /// It leads out of the execution, or contains a NUL byte.
    #[error("a key must not contain `..` or NUL")]
    Forbidden,
    /// It is longer than an object's key may be.
    #[error("a key must have at most 900 bytes, and each name in it at most 255")]
    TooLong,
}

/// See [`FileStorage::normalize_key`].
pub(super) fn normalize_key(key: &str) -> Result<String, KeyError> {
    let parts: Vec<&str> = key.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let first = parts.first().ok_or(KeyError::Empty)?;
    if parts.iter().any(|part| *part == ".." || part.contains('\0')) {
        return Err(KeyError::Forbidden);
    }
    let path = if DIRS.contains(first) { parts.join("/") } else { format!("artifacts/{}", parts.join("/")) };
    if path.len() > 900 || parts.iter().any(|part| part.len() > 255) {
        return Err(KeyError::TooLong);
    }
    Ok(path)
}

impl FileStorage {
    /// Returns the key under which the server stores it. Empty components and `.` are dropped, and a key outside of the
    /// execution's directories is an artifact.
    ///
    /// # Errors
    /// If the key is invalid.
    pub fn normalize_key(&self, key: &str) -> Result<String, KeyError> {
        normalize_key(key)
    }

    /// Generates a unique key: `{prefix}_{time}_{8 hex}.{extension}`.
    ///
    /// # Errors
    /// If a key with this prefix is invalid.
    pub fn generate_key(&self, prefix: &str, extension: &str) -> Result<String, KeyError> {
        let now = OffsetDateTime::now_utc();
        let day = format!("{:04}{:02}{:02}", now.year(), u8::from(now.month()), now.day());
        let random = RandomState::new().hash_one(now.unix_timestamp_nanos()) & 0xffff_ffff;
        let dot = if extension.is_empty() || extension.starts_with('.') { "" } else { "." };
        let time = format!("{day}_{:02}{:02}{:02}", now.hour(), now.minute(), now.second());
        normalize_key(&format!("{prefix}_{time}_{random:08x}{dot}{extension}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_the_server_reads_them() {
        assert_eq!(normalize_key("test.txt").unwrap(), "artifacts/test.txt");
        assert_eq!(normalize_key("/results//plots/./p.png").unwrap(), "results/plots/p.png");
        assert_eq!(normalize_key("a/../../b"), Err(KeyError::Forbidden));
        assert_eq!(normalize_key("//"), Err(KeyError::Empty));
        assert_eq!(normalize_key(&"x".repeat(300)), Err(KeyError::TooLong));
    }
}
