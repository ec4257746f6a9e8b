//! `GET /files/tree`: lists everything below a directory, with enough detail to detect changes.
//!
//! E2B has no such route. The server uses it after every run to find what has changed in a home that it copies. Names that
//! begin with a dot and `__pycache__` are excluded with everything below them. Links are listed but never followed. With
//! `only`, which may be repeated, just these paths are listed.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::{Serialize, Serializer};

use crate::files::{failed, find_user, in_background, resolve};
use crate::http::{HttpError, Query, Reply, json_reply};
use crate::rights::on_behalf_of;
use crate::settings::Settings;

/// How many entries are listed if the request does not say.
const DEFAULT_MAX_ENTRIES: usize = 20_000;
const MAX_ENTRIES: usize = 1_000_000;

pub(crate) async fn tree(settings: &Settings, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let query = Query::parse(request.uri().query());
    let user = find_user(settings, query.get("username"))?;
    let root = resolve(settings, &user, query.get("path").unwrap_or_default())?;
    let max = match query.get("max") {
        None => DEFAULT_MAX_ENTRIES,
        Some(text) => text
            .parse()
            .ok()
            .filter(|max| (1..=MAX_ENTRIES).contains(max))
            .ok_or_else(|| HttpError::new(StatusCode::BAD_REQUEST, "max must be a number from 1 to 1000000"))?,
    };
    let only: Vec<PathBuf> = query.all("only").map(PathBuf::from).collect();
    let listing = move || {
        let look = || if only.is_empty() { list(&root, max) } else { Ok(list_only(&root, &only)) };
        on_behalf_of(&user, look)
    };
    let listed = in_background(listing).await?;
    Ok(json_reply(&listed))
}

#[derive(Debug, Default, Serialize)]
struct Listed {
    entries: Vec<Entry>,
    /// Whether there are more entries than `max`.
    truncated: bool,
    /// Directories that could not be read, and names that are not UTF-8.
    unreadable: Vec<String>,
}

#[derive(Debug)]
struct Entry {
    kind: &'static str,
    path: String,
    meta: Metadata,
}

/// An entry is an array, not an object: a reply may have thousands of them.
impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanos = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        let meta = &self.meta;
        let modified = nanos(meta.mtime(), meta.mtime_nsec());
        let changed = nanos(meta.ctime(), meta.ctime_nsec());
        (self.kind, &self.path, meta.len(), modified, changed, meta.ino()).serialize(serializer)
    }
}

fn list(root: &Path, max: usize) -> Result<Listed, HttpError> {
    let mut listed = Listed::default();
    // Directories to visit, relative to the root. No recursion, because trees may be deep.
    let mut open = vec![PathBuf::new()];
    while let Some(directory) = open.pop() {
        if let Err(error) = list_one(root, &directory, max, &mut listed, &mut open) {
            if directory.as_os_str().is_empty() {
                return Err(failed("error reading directory", root, &error));
            }
            listed.unreadable.push(directory.to_string_lossy().into_owned());
        }
        if listed.truncated {
            break;
        }
    }
    listed.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(listed)
}

/// Lists those of these paths that a full listing would contain.
fn list_only(root: &Path, paths: &[PathBuf]) -> Listed {
    let is_included = |path: &&PathBuf| {
        let mut parts = path.components();
        parts.all(|part| matches!(part, Component::Normal(name) if !is_excluded(name)))
    };
    let look = |path: &PathBuf| {
        let meta = std::fs::symlink_metadata(root.join(path)).ok().filter(|meta| !meta.is_dir())?;
        Some(Entry { kind: kind_of(&meta), path: path.to_str()?.to_owned(), meta })
    };
    Listed { entries: paths.iter().filter(is_included).filter_map(look).collect(), ..Listed::default() }
}

fn is_excluded(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".") || name == "__pycache__"
}

fn kind_of(meta: &Metadata) -> &'static str {
    if meta.is_file() { "file" } else { "other" }
}

fn list_one(root: &Path, directory: &Path, max: usize, listed: &mut Listed, open: &mut Vec<PathBuf>) -> io::Result<()> {
    for found in std::fs::read_dir(root.join(directory))? {
        let found = found?;
        let name = found.file_name();
        let path = directory.join(&name);
        let Some(text) = path.to_str() else {
            listed.unreadable.push(path.to_string_lossy().into_owned());
            continue;
        };
        if is_excluded(&name) {
            continue;
        }
        // Skip entries that vanished since their directory was read.
        let Ok(meta) = found.metadata() else { continue };
        if meta.is_dir() {
            open.push(path);
            continue;
        }
        if listed.entries.len() == max {
            listed.truncated = true;
            return Ok(());
        }
        listed.entries.push(Entry { kind: kind_of(&meta), path: text.to_owned(), meta });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(listed: &Listed) -> Vec<(&'static str, &str)> {
        listed.entries.iter().map(|entry| (entry.kind, entry.path.as_str())).collect()
    }

    #[test]
    fn hidden_names_are_excluded_and_links_are_listed_but_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/b", "a/__pycache__", ".hidden", "a/.git"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
            std::fs::write(dir.path().join(path).join("x"), "x").unwrap();
        }
        std::os::unix::fs::symlink("..", dir.path().join("a/up")).unwrap();
        let listed = list(dir.path(), 10).unwrap();
        assert_eq!(paths(&listed), [("file", "a/b/x"), ("other", "a/up")]);
        let json = serde_json::to_value(&listed).unwrap();
        assert_eq!((json["entries"][0][1].as_str(), json["entries"][0][2].as_u64()), (Some("a/b/x"), Some(1)));
    }

    #[test]
    fn selected_paths_are_listed_as_in_a_full_listing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/.git")).unwrap();
        for path in ["x", "a/x", "a/.git/x", ".hidden"] {
            std::fs::write(dir.path().join(path), "x").unwrap();
        }
        std::os::unix::fs::symlink("x", dir.path().join("link")).unwrap();
        let asked = ["a/x", "link", "none", "a", "a/.git/x", ".hidden", "../x", "/etc/passwd", "a/../x", ""];
        let listed = list_only(dir.path(), &asked.map(PathBuf::from));
        assert_eq!(paths(&listed), [("file", "a/x"), ("other", "link")]);
    }

    #[test]
    fn a_listing_that_is_too_long_is_marked_as_truncated() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..5 {
            std::fs::write(dir.path().join(n.to_string()), "").unwrap();
        }
        let listed = list(dir.path(), 3).unwrap();
        assert!(listed.truncated && listed.entries.len() == 3);
        assert!(!list(dir.path(), 5).unwrap().truncated);
        assert!(list(&dir.path().join("none"), 5).is_err());
    }
}
