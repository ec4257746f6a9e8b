//! Lists everything below a directory, with the attributes that show whether an entry has changed. Only Isopod's guests
//! support this call.

use std::fmt;

use http::{HeaderMap, Method};
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Guest, GuestError};
use crate::transport::{Query, empty_body, read_limited};

/// The average size of an entry in a reply: its path in JSON, and some numbers.
const ENTRY_BYTES: usize = 1 << 10;
/// The size of the rest of a reply.
const OTHER_BYTES: usize = 1 << 20;

/// The content of a directory tree, without hidden names and `__pycache__`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Files, links and others sorted by path. Directories are not listed.
    pub entries: Vec<TreeEntry>,
    /// Whether there are more entries than requested.
    pub truncated: bool,
    /// Directories that could not be read, and names that are not UTF-8.
    pub unreadable: Vec<String>,
}

/// One entry of a [`Tree`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "(String, String, u64, i64, i64, u64)")]
pub struct TreeEntry {
    /// Whether this is a regular file. Links are not.
    pub is_file: bool,
    /// Relative to the requested directory.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// When its content was last modified, in nanoseconds since 1970.
    pub modified: i64,
    /// When its inode last changed, in nanoseconds since 1970.
    pub changed: i64,
    /// Its inode number.
    pub inode: u64,
}

impl From<(String, String, u64, i64, i64, u64)> for TreeEntry {
    fn from((kind, path, size, modified, changed, inode): (String, String, u64, i64, i64, u64)) -> Self {
        Self { is_file: kind == "file", path, size, modified, changed, inode }
    }
}

impl Guest {
    /// Lists everything below a directory, at most `max` entries.
    ///
    /// # Errors
    /// If it does not exist, or the guest is not one of Isopod's.
    pub async fn tree(&self, path: &str, max: usize) -> Result<Tree, GuestError> {
        self.tree_of(path, max, &[]).await
    }

    /// Returns some paths below a directory. Missing ones are left out. An older guest returns everything, up to `max`
    /// entries.
    ///
    /// # Errors
    /// Like [`Guest::tree`].
    pub async fn tree_of(&self, path: &str, max: usize, only: &[&str]) -> Result<Tree, GuestError> {
        let http = &self.caller.http;
        let (most, max) = (max, max.to_string());
        let query = Query::new().with("path", path).with("max", &max).with_some("username", self.user.as_deref());
        let query = only.iter().fold(query, |query, path| query.with("only", path));
        let request = http.request(Method::GET, &query.behind("/files/tree"), HeaderMap::new(), empty_body())?;
        let read = |reply| async {
            let reply = self.caller.accept(reply).await?;
            let limit = most.saturating_mul(ENTRY_BYTES).saturating_add(OTHER_BYTES).min(self.caller.max_reply);
            Ok::<_, GuestError>(read_limited(reply.into_body(), limit).await.map_err(|error| http.broken(error))?)
        };
        let body = http.exchange(request, read).await?;
        parse(&body, most).map_err(|error| GuestError::Protocol(format!("unreadable reply: {error}")))
    }
}

pub(super) fn parse(body: &[u8], most: usize) -> serde_json::Result<Tree> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let tree = AtMost { most }.deserialize(&mut json)?;
    json.end()?;
    Ok(tree)
}

/// Parses a tree. Refuses one with more entries than requested before it allocates memory for them.
#[derive(Clone, Copy)]
struct AtMost {
    most: usize,
}

impl<'de> DeserializeSeed<'de> for AtMost {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for AtMost {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a listing")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut tree = Tree::default();
        let mut has_entries = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "entries" => (tree.entries, has_entries) = (map.next_value_seed(Items::new(self.most))?, true),
                "truncated" => tree.truncated = map.next_value()?,
                "unreadable" => tree.unreadable = map.next_value_seed(Items::new(self.most))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if !has_entries {
            return Err(A::Error::missing_field("entries"));
        }
        Ok(tree)
    }
}

/// A list with a maximum length.
struct Items<T> {
    most: usize,
    of: std::marker::PhantomData<T>,
}

impl<T> Items<T> {
    fn new(most: usize) -> Self {
        Self { most, of: std::marker::PhantomData }
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Items<T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} entries", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            if items.len() == self.most {
                return Err(A::Error::invalid_length(items.len() + 1, &self));
            }
            items.push(item);
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_entries_than_were_asked_for_are_refused() {
        let reply = |entries: usize, unreadable: usize| {
            let entry = serde_json::json!(["file", "a", 1, 2, 3, 4]);
            let list = vec![entry; entries];
            serde_json::json!({ "entries": list, "unreadable": vec!["x"; unreadable], "new": {} }).to_string()
        };
        assert_eq!(parse(reply(3, 2).as_bytes(), 3).unwrap().entries.len(), 3);
        for reply in [reply(4, 0), reply(0, 4)] {
            let error = parse(reply.as_bytes(), 3).unwrap_err();
            assert!(error.to_string().contains("at most 3"), "{error}");
        }
        for nonsense in ["", "[]", "{}", "{\"entries\":[[]]}", "{\"entries\":[]} x"] {
            assert!(parse(nonsense.as_bytes(), 3).is_err(), "{nonsense}");
        }
    }
}
