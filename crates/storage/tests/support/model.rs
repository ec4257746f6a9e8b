//! A file system that is as simple as possible, to compare the real one with.

use std::collections::BTreeMap;
use std::sync::Arc;

use isopod_storage::{FsError, Kind, Replace, SetAttr, Vfs, XattrMode};

use super::{ME, Random, place, resolve};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Directory { mode: u32 },
    File { mode: u32, content: Vec<u8>, xattr: Option<Vec<u8>> },
    Link { target: Vec<u8> },
}

/// Paths without a leading slash. The root is not included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) entries: BTreeMap<String, Entry>,
}

/// One operation of a program.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write { path: String, offset: u64, data: Vec<u8> },
    Append { path: String, data: Vec<u8> },
    Truncate { path: String, size: u64 },
    Mkdir { path: String },
    Rmdir { path: String },
    Unlink { path: String },
    Rename { from: String, to: String, replace: Replace },
    Chmod { path: String, mode: u32 },
    Link { path: String, target: Vec<u8> },
    Xattr { path: String, value: Vec<u8> },
}

impl Step {
    /// A step on one of a few names, so that steps often use the same one.
    pub(crate) fn random(random: &mut Random) -> Self {
        let path = random_path(random);
        let length = [0, 1, 100, 5000, 70_000][random.below(5) as usize];
        let data = |random: &mut Random| {
            let length = random.below(length + 1) as usize;
            random.bytes(length)
        };
        match random.below(20) {
            0..5 => Self::Write { path, offset: random.below(9000), data: data(random) },
            5..7 => Self::Append { path, data: data(random) },
            7 => Self::Truncate { path, size: random.below(20_000) },
            8..11 => Self::Mkdir { path },
            11 => Self::Rmdir { path },
            12..14 => Self::Unlink { path },
            14..18 => {
                let replace = if random.below(5) == 0 { Replace::No } else { Replace::Yes };
                Self::Rename { from: path, to: random_path(random), replace }
            }
            18 => Self::Chmod { path, mode: random.below(0o1000) as u32 },
            _ if random.below(2) == 0 => Self::Link { path, target: b"some/where".to_vec() },
            _ => Self::Xattr { path, value: random.bytes(20) },
        }
    }
}

fn random_path(random: &mut Random) -> String {
    let depth = 1 + random.below(3);
    let parts: Vec<&str> = (0..depth).map(|_| ["a", "b", "c", "ü %0A"][random.below(4) as usize]).collect();
    parts.join("/")
}

impl Model {
    /// The expected result: the new state, or the error that a program gets.
    pub(crate) fn apply(&mut self, step: &Step) -> Result<(), &'static str> {
        match step {
            Step::Write { path, offset, data } => self.edit(path, |content| {
                if data.is_empty() {
                    return;
                }
                let end = *offset as usize + data.len();
                content.resize(content.len().max(end), 0);
                content[*offset as usize..end].copy_from_slice(data);
            }),
            Step::Append { path, data } => self.edit(path, |content| content.extend(data)),
            Step::Truncate { path, size } => {
                self.existing(path)?;
                self.edit(path, |content| content.resize(*size as usize, 0))
            }
            Step::Mkdir { path } => self.make(path, Entry::Directory { mode: 0o755 }),
            Step::Link { path, target } => self.make(path, Entry::Link { target: target.clone() }),
            Step::Rmdir { path } => match self.existing(path)?.clone() {
                Entry::Directory { .. } if self.has_below(path) => Err("ENOTEMPTY"),
                Entry::Directory { .. } => self.remove(path),
                _ => Err("ENOTDIR"),
            },
            Step::Unlink { path } => match self.existing(path)? {
                Entry::Directory { .. } => Err("EISDIR"),
                _ => self.remove(path),
            },
            Step::Rename { from, to, replace } => self.rename(from, to, *replace),
            Step::Chmod { path, mode } => {
                match self.existing(path)? {
                    Entry::Directory { mode: old } | Entry::File { mode: old, .. } => *old = *mode,
                    Entry::Link { .. } => {}
                }
                Ok(())
            }
            Step::Xattr { path, value } => {
                if let Entry::File { xattr, .. } = self.existing(path)? {
                    *xattr = Some(value.clone());
                }
                Ok(())
            }
        }
    }

    fn rename(&mut self, from: &str, to: &str, replace: Replace) -> Result<(), &'static str> {
        let moved = self.existing(from)?.clone();
        self.check_parent(to)?;
        if from == to {
            return Ok(());
        }
        if to.starts_with(&format!("{from}/")) {
            return Err("EINVAL");
        }
        if let Some(target) = self.entries.get(to) {
            let (is_directory, onto_directory) =
                (matches!(moved, Entry::Directory { .. }), matches!(target, Entry::Directory { .. }));
            match (is_directory, onto_directory) {
                _ if replace == Replace::No => return Err("EEXIST"),
                (true, false) => return Err("ENOTDIR"),
                (true, true) if self.has_below(to) => return Err("ENOTEMPTY"),
                (false, true) => return Err("EISDIR"),
                _ => {}
            }
        }
        self.entries.remove(to);
        let below = format!("{from}/");
        let all: Vec<String> =
            self.entries.keys().filter(|path| *path == from || path.starts_with(&below)).cloned().collect();
        for path in all {
            let entry = self.entries.remove(&path).unwrap();
            self.entries.insert(format!("{to}{}", &path[from.len()..]), entry);
        }
        Ok(())
    }

    fn edit(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>)) -> Result<(), &'static str> {
        if !self.entries.contains_key(path) {
            self.make(path, Entry::File { mode: 0o644, content: Vec::new(), xattr: None })?;
        }
        match self.existing(path)? {
            Entry::File { content, .. } => {
                change(content);
                Ok(())
            }
            Entry::Directory { .. } => Err("EISDIR"),
            Entry::Link { .. } => Err("EINVAL"),
        }
    }

    fn make(&mut self, path: &str, entry: Entry) -> Result<(), &'static str> {
        self.check_parent(path)?;
        if self.entries.contains_key(path) {
            return Err("EEXIST");
        }
        self.entries.insert(path.to_owned(), entry);
        Ok(())
    }

    fn existing(&mut self, path: &str) -> Result<&mut Entry, &'static str> {
        self.check_parent(path)?;
        self.entries.get_mut(path).ok_or("ENOENT")
    }

    fn check_parent(&self, path: &str) -> Result<(), &'static str> {
        let Some((above, _)) = path.rsplit_once('/') else { return Ok(()) };
        self.check_parent(above)?;
        match self.entries.get(above) {
            Some(Entry::Directory { .. }) => Ok(()),
            Some(_) => Err("ENOTDIR"),
            None => Err("ENOENT"),
        }
    }

    fn has_below(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.entries.keys().any(|other| other.starts_with(&below))
    }

    fn remove(&mut self, path: &str) -> Result<(), &'static str> {
        self.entries.remove(path);
        Ok(())
    }
}

/// Executes the same step on the real file system.
pub(crate) async fn perform(vfs: &Arc<Vfs>, step: &Step) -> Result<(), FsError> {
    match step {
        Step::Write { path, offset, data } => edit(vfs, path, *offset, data, false).await,
        Step::Append { path, data } => edit(vfs, path, 0, data, true).await,
        Step::Truncate { path, size } => {
            let ino = resolve(vfs, path).await?.ino;
            vfs.set_attr(ME, ino, SetAttr { size: Some(*size), ..SetAttr::default() }).await.map(drop)
        }
        Step::Mkdir { path } => super::make_directory(vfs, path).await.map(drop),
        Step::Rmdir { path } => {
            let (parent, name) = place(vfs, path).await?;
            vfs.remove_directory(ME, parent, name).await
        }
        Step::Unlink { path } => {
            let (parent, name) = place(vfs, path).await?;
            vfs.unlink(ME, parent, name).await
        }
        Step::Rename { from, to, replace } => {
            let from = place(vfs, from).await?;
            // The model checks the source first.
            vfs.lookup(from.0, from.1).await?;
            let to = place(vfs, to).await?;
            vfs.rename(ME, from, to, *replace).await
        }
        Step::Chmod { path, mode } => {
            let attr = resolve(vfs, path).await?;
            let mode = if attr.kind == Kind::Symlink { attr.mode } else { *mode };
            vfs.set_attr(ME, attr.ino, SetAttr { mode: Some(mode), ..SetAttr::default() }).await.map(drop)
        }
        Step::Link { path, target } => {
            let (parent, name) = place(vfs, path).await?;
            vfs.make_symlink(ME, parent, name, target).await.map(drop)
        }
        Step::Xattr { path, value } => {
            let ino = resolve(vfs, path).await?.ino;
            vfs.set_xattr(ME, ino, b"user.test", value, XattrMode::default()).await
        }
    }
}

async fn edit(vfs: &Arc<Vfs>, path: &str, offset: u64, data: &[u8], append: bool) -> Result<(), FsError> {
    let (parent, name) = place(vfs, path).await?;
    let ino = match vfs.create(ME, parent, name, 0o644).await {
        Ok(attr) => attr.ino,
        Err(FsError::Exists) => {
            let ino = vfs.lookup(parent, name).await?.ino;
            vfs.open_file(ino, true, false).await?;
            ino
        }
        Err(error) => return Err(error),
    };
    let written = if data.is_empty() { Ok(0) } else { vfs.write(ME, ino, offset, data, append).await };
    vfs.close_file(ino, true)?;
    written.map(drop)
}

/// Everything in the real file system, in the form of the model.
pub(crate) async fn snapshot(vfs: &Arc<Vfs>) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(String::new(), isopod_storage::ROOT)];
    while let Some((prefix, ino)) = todo.pop() {
        for entry in vfs.read_directory(ino).await.unwrap() {
            let path = format!("{prefix}{}", String::from_utf8(entry.name.clone()).unwrap());
            let attr = vfs.lookup(ino, &entry.name).await.unwrap();
            let seen = match attr.kind {
                Kind::Directory => {
                    todo.push((format!("{path}/"), attr.ino));
                    Entry::Directory { mode: attr.mode }
                }
                Kind::Symlink => Entry::Link { target: vfs.read_link(attr.ino).await.unwrap() },
                Kind::File => {
                    let content = vfs.read(attr.ino, 0, attr.size as usize + 1).await.unwrap();
                    assert_eq!(content.len() as u64, attr.size, "{path}");
                    let xattr = vfs.xattr(attr.ino, b"user.test").await.ok();
                    Entry::File { mode: attr.mode, content, xattr }
                }
            };
            found.insert(path, seen);
        }
    }
    found
}
