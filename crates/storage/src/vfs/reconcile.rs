//! Reconciles the tree with what the bucket shows.
//!
//! Three things are never overridden: local changes that are not uploaded yet, changes after the request was sent
//! (`clock`), and what a program has open.

use std::collections::BTreeMap;
use std::time::Instant;

use super::node::{Body, FileBody, Ino, Node, ROOT, Remote};
use super::{Change, Core, FsError, Vfs};
use crate::attributes::{Attributes, Kind};
use crate::name;
use crate::object::ObjectInfo;

/// What a listing shows under one name.
pub(super) enum Seen {
    Object(ObjectInfo),
    Prefix,
}

/// A complete or partial listing of one directory.
pub(super) struct View {
    pub(super) seen: BTreeMap<Vec<u8>, Seen>,
    pub(super) marker: Option<ObjectInfo>,
    pub(super) complete: bool,
}

impl Vfs {
    /// Updates a directory of the tree to what a listing shows.
    pub(super) fn reconcile(&self, core: &mut Core, ino: Ino, view: View, clock: u64) -> Result<Vec<Change>, FsError> {
        let mut changes = Vec::new();
        if let Some(marker) = view.marker {
            let node = core.tree.get_mut(ino)?;
            if node.pending.is_none() && node.remote.as_ref().is_none_or(|remote| remote.tag != marker.tag) {
                node.remote = Some(Remote { key: marker.key, tag: marker.tag, size: 0 });
                node.known = ino == ROOT;
            }
        }
        let directory = core.tree.get(ino)?.directory().ok_or(FsError::NotDirectory)?;
        let missing: Vec<Vec<u8>> = if view.complete {
            directory.children.keys().filter(|name| !view.seen.contains_key(*name)).cloned().collect()
        } else {
            Vec::new()
        };
        for (name, seen) in view.seen {
            changes.append(&mut self.agree_on(core, ino, &name, seen, clock)?);
        }
        for name in missing {
            changes.extend(self.agree_on_absence(core, ino, &name, clock)?);
        }
        if view.complete
            && let Some(directory) = core.tree.get_mut(ino)?.directory_mut()
        {
            directory.listed = Some(Instant::now());
        }
        Ok(changes)
    }

    pub(super) fn agree_on(
        &self,
        core: &mut Core,
        parent: Ino,
        name: &[u8],
        seen: Seen,
        clock: u64,
    ) -> Result<Vec<Change>, FsError> {
        let key = core.tree.prefix(parent) + &name::encode(name);
        let Some(ino) = core.tree.child(parent, name)? else {
            // A directory that was removed here is hidden by the deletion of its marker, whether it had one or not.
            let hidden = match &seen {
                Seen::Object(_) => core.tree.is_hidden(&key, clock),
                Seen::Prefix => core.tree.is_hidden(&format!("{key}/"), clock),
            };
            if !hidden {
                self.insert_seen(core, parent, name, seen)?;
            }
            return Ok(Vec::new());
        };
        let node = core.tree.get_mut(ino)?;
        if node.pending.is_some() || node.touched > clock {
            return Ok(Vec::new());
        }
        match (&mut node.body, seen) {
            (Body::Directory(_), Seen::Prefix) => {
                node.checked = Some(Instant::now());
                Ok(Vec::new())
            }
            (Body::File(_) | Body::Symlink(_), Seen::Object(info)) => {
                node.checked = Some(Instant::now());
                let same =
                    node.remote.as_ref().is_some_and(|remote| remote.tag == info.tag && remote.size == info.size);
                if same { Ok(Vec::new()) } else { self.replace_seen(core, ino, info) }
            }
            (_, seen) => {
                if is_in_use(core, ino) {
                    return Ok(Vec::new());
                }
                self.drop_below(core, ino)?;
                self.insert_seen(core, parent, name, seen)?;
                Ok(vec![Change::Entry { parent, name: name.to_vec() }])
            }
        }
    }

    pub(super) fn agree_on_absence(
        &self,
        core: &mut Core,
        parent: Ino,
        name: &[u8],
        clock: u64,
    ) -> Result<Option<Change>, FsError> {
        let Some(ino) = core.tree.child(parent, name)? else { return Ok(None) };
        let node = core.tree.get(ino)?;
        if node.pending.is_some() || node.touched > clock || is_in_use(core, ino) {
            return Ok(None);
        }
        self.drop_below(core, ino)?;
        Ok(Some(Change::Entry { parent, name: name.to_vec() }))
    }

    fn insert_seen(&self, core: &mut Core, parent: Ino, name: &[u8], seen: Seen) -> Result<(), FsError> {
        let ino = core.tree.next_ino();
        let mut node = match seen {
            Seen::Prefix => {
                let attributes = self.default_attributes(self.settings.dir_mode);
                core.tree.blank(ino, Body::Directory(Default::default()), attributes)
            }
            Seen::Object(info) => {
                let body = Body::File(FileBody { size: info.size, ..FileBody::default() });
                let mut node = core.tree.blank(ino, body, self.default_attributes(self.settings.file_mode));
                self.take_over(&mut node, &info);
                node
            }
        };
        node.checked = Some(Instant::now());
        core.tree.attach(node, parent, name.to_vec())
    }

    /// Handles an object that was replaced by another tool.
    fn replace_seen(&self, core: &mut Core, ino: Ino, info: ObjectInfo) -> Result<Vec<Change>, FsError> {
        let node = core.tree.get_mut(ino)?;
        if let Body::Symlink(_) = node.body {
            node.body = Body::File(FileBody::default());
        }
        if let Some(file) = node.file_mut() {
            file.local = false;
            file.file = None;
            file.copy = None;
        }
        self.cache.remove(ino);
        core.tree.resize(ino, info.size)?;
        let node = core.tree.get_mut(ino)?;
        self.take_over(node, &info);
        Ok(vec![Change::Content(ino)])
    }

    /// Copies what a listing shows about an object.
    fn take_over(&self, node: &mut Node, info: &ObjectInfo) {
        let mut defaults = self.default_attributes(self.settings.file_mode);
        defaults.mtime = info.modified;
        node.ctime = info.modified;
        node.remote = Some(Remote { key: info.key.clone(), tag: info.tag.clone(), size: info.size });
        let (_, attributes) =
            Attributes::from_metadata(info.metadata.as_ref().unwrap_or(&Default::default()), defaults);
        node.attributes = attributes;
        node.known = info.metadata.is_some() && !is_symlink(info);
    }

    pub(super) fn learned(&self, ino: Ino, info: &ObjectInfo, target: Option<Vec<u8>>) -> Result<(), FsError> {
        let mut core = self.core();
        let node = core.tree.get_mut(ino)?;
        let is_directory = node.kind() == Kind::Directory;
        let mode = if is_directory { self.settings.dir_mode } else { self.settings.file_mode };
        let mut defaults = self.default_attributes(mode);
        defaults.mtime = info.modified;
        (_, node.attributes) =
            Attributes::from_metadata(info.metadata.as_ref().unwrap_or(&Default::default()), defaults);
        node.ctime = info.modified;
        node.known = true;
        if let Some(target) = target
            && !is_directory
        {
            node.body = Body::Symlink(target);
        }
        if node.pending.is_none() {
            node.remote = Some(Remote { key: info.key.clone(), tag: info.tag.clone(), size: info.size });
        }
        if node.pending.is_none() && node.kind() == Kind::File {
            let outdated =
                node.file().and_then(|file| file.copy.as_ref()).is_some_and(|copy| copy.remote.tag != info.tag);
            if let Some(file) = node.file_mut().filter(|_| outdated) {
                file.copy = None;
            }
            core.tree.resize(ino, info.size)?;
        }
        Ok(())
    }

    /// Handles a missing object. A directory needs none, but anything else was deleted in the meantime.
    pub(super) fn learn_absence(&self, ino: Ino) -> Result<(), FsError> {
        let mut core = self.core();
        let node = core.tree.get_mut(ino)?;
        if node.kind() == Kind::Directory || node.pending.is_some() {
            node.known = true;
            return Ok(());
        }
        self.drop_below(&mut core, ino)?;
        Err(FsError::NotFound)
    }

    /// Removes a node and everything below it, because the bucket does not have it any more.
    pub(super) fn drop_below(&self, core: &mut Core, ino: Ino) -> Result<(), FsError> {
        let mut gone = core.tree.below(ino);
        gone.reverse();
        gone.push(ino);
        for ino in gone {
            core.tree.detach(ino)?;
            if core.tree.reap(ino) {
                self.cache.remove(ino);
            }
        }
        Ok(())
    }
}

impl View {
    pub(super) fn new(prefix: &str, listing: crate::Listing, complete: bool) -> Self {
        let mut view = Self { seen: BTreeMap::new(), marker: None, complete };
        for object in listing.objects {
            match object.key.strip_prefix(prefix) {
                Some("") => view.marker = Some(object),
                Some(part) => {
                    if let Some(name) = name::decode(part) {
                        view.seen.insert(name, Seen::Object(object));
                    }
                }
                None => {}
            }
        }
        // A name that is both an object and a prefix is shown as a directory, so that everything below it stays
        // reachable.
        for below in listing.prefixes {
            let part = below.strip_prefix(prefix).and_then(|part| part.strip_suffix('/'));
            if let Some(name) = part.and_then(name::decode) {
                view.seen.insert(name, Seen::Prefix);
            }
        }
        view
    }
}

pub(super) fn is_symlink(info: &ObjectInfo) -> bool {
    let mode =
        info.metadata.as_ref().and_then(|metadata| metadata.get("mode")).and_then(|mode| mode.parse::<u32>().ok());
    mode.is_some_and(|mode| mode & 0o170_000 == Kind::Symlink.type_bits())
}

/// Whether something at or below a node is open or not uploaded.
fn is_in_use(core: &Core, ino: Ino) -> bool {
    let busy = |ino: Ino| core.tree.get(ino).is_ok_and(|node| node.pending.is_some() || node.opens > 0);
    busy(ino) || core.tree.below(ino).into_iter().any(busy)
}
