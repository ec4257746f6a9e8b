//! Everything below a directory, with what tells whether it has changed. Only Isopod's guests know this call.

use http::{HeaderMap, Method};
use serde::Deserialize;

use super::{Guest, GuestError};
use crate::transport::{Query, empty_body, read_limited};

const MAX_REPLY: usize = 256 << 20;

/// What is below a directory; hidden names and `__pycache__` are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Tree {
    /// Files, links and others in the order of their paths; directories are not named.
    pub entries: Vec<TreeEntry>,
    /// There is more than was asked for.
    pub truncated: bool,
    /// Directories that could not be read, and names that are no text.
    pub unreadable: Vec<String>,
}

/// One entry of a [`Tree`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "(String, String, u64, i64, i64, u64)")]
pub struct TreeEntry {
    /// A regular file; links are not.
    pub is_file: bool,
    /// Relative to the directory that was asked about.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// When its contents were last written, in nanoseconds since 1970.
    pub modified: i64,
    /// When anything about it last changed, in nanoseconds since 1970.
    pub changed: i64,
    /// Its inode.
    pub inode: u64,
}

impl From<(String, String, u64, i64, i64, u64)> for TreeEntry {
    fn from((kind, path, size, modified, changed, inode): (String, String, u64, i64, i64, u64)) -> Self {
        Self { is_file: kind == "file", path, size, modified, changed, inode }
    }
}

impl Guest {
    /// Lists what is below a directory, at most `max` entries.
    ///
    /// # Errors
    /// When it does not exist, or the guest is not one of Isopod's.
    pub async fn tree(&self, path: &str, max: usize) -> Result<Tree, GuestError> {
        self.tree_of(path, max, &[]).await
    }

    /// Looks at a few paths below a directory. Those that are not there are missing in the answer. An older guest answers
    /// with everything, of which at most `max` entries.
    ///
    /// # Errors
    /// As with [`Guest::tree`].
    pub async fn tree_of(&self, path: &str, max: usize, only: &[&str]) -> Result<Tree, GuestError> {
        let http = &self.caller.http;
        let max = max.to_string();
        let query = Query::new().with("path", path).with("max", &max).with_some("username", self.user.as_deref());
        let query = only.iter().fold(query, |query, path| query.with("only", path));
        let request = http.request(Method::GET, &query.behind("/files/tree"), HeaderMap::new(), empty_body())?;
        let read = |reply| async {
            let reply = self.caller.accept(reply).await?;
            Ok::<_, GuestError>(read_limited(reply.into_body(), MAX_REPLY).await.map_err(|error| http.broken(error))?)
        };
        let body = http.exchange(request, read).await?;
        serde_json::from_slice(&body).map_err(|error| GuestError::Protocol(format!("unreadable reply: {error}")))
    }
}
