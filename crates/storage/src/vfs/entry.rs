//! Names: lookup, and creating and removing files, directories and symbolic links.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::journal::Record;
use super::node::{Body, Directory, FileBody, Ino, ROOT};
use super::refresh::TARGET_MAX;
use super::{Attr, Change, Core, FsError, MountId, Vfs};
use crate::attributes::{Attributes, Kind};
use crate::name;

/// The caller of a file system operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    pub mount: MountId,
    pub uid: u32,
    pub gid: u32,
}

impl Vfs {
    /// Looks up a name.
    pub async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let ino = self.find(parent, name).await?.ok_or(FsError::NotFound)?;
        self.learn_or_guess(ino).await?;
        Ok(self.core().tree.get(ino)?.attr())
    }

    /// Creates a new file and opens it for writing.
    pub async fn create(&self, caller: Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attr, FsError> {
        let body = Body::File(FileBody { local: true, ..FileBody::default() });
        self.make(caller, parent, name, mode, body).await
    }

    pub async fn make_directory(&self, caller: Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attr, FsError> {
        // It is empty, unless another tool adds something within the time for which the listing is considered valid.
        let body = Body::Directory(Directory { listed: Some(Instant::now()), ..Directory::default() });
        self.make(caller, parent, name, mode, body).await
    }

    pub async fn make_symlink(&self, caller: Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr, FsError> {
        if target.is_empty() || target.len() as u64 > TARGET_MAX {
            return Err(FsError::NameTooLong);
        }
        self.make(caller, parent, name, 0o777, Body::Symlink(target.to_vec())).await
    }

    pub async fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.learn(ino).await?;
        match &self.core().tree.get(ino)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(FsError::Invalid),
        }
    }

    /// Removes a file or a symbolic link. Programs that have it open keep it.
    pub async fn unlink(&self, caller: Caller, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        let ino = self.find(parent, name).await?.ok_or(FsError::NotFound)?;
        {
            let mut core = self.core();
            if core.tree.child(parent, name)? != Some(ino) {
                return Err(FsError::NotFound);
            }
            if core.tree.get(ino)?.kind() == Kind::Directory {
                return Err(FsError::IsDirectory);
            }
            self.remove_entry(&mut core, ino)?;
        }
        self.announce_removal(caller, parent, name, ino).await;
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn remove_directory(self: &Arc<Self>, caller: Caller, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        let ino = self.find(parent, name).await?.ok_or(FsError::NotFound)?;
        self.read_directory(ino).await?;
        {
            let mut core = self.core();
            if core.tree.child(parent, name)? != Some(ino) {
                return Err(FsError::NotFound);
            }
            let directory = core.tree.get(ino)?.directory().ok_or(FsError::NotDirectory)?;
            if !directory.children.is_empty() {
                return Err(FsError::NotEmpty);
            }
            self.remove_entry(&mut core, ino)?;
        }
        self.announce_removal(caller, parent, name, ino).await;
        Ok(())
    }

    /// Records that the kernel was told about a node once more.
    pub fn remember(&self, ino: Ino) -> Result<(), FsError> {
        self.core().tree.get_mut(ino)?.lookups += 1;
        Ok(())
    }

    /// Records that the kernel has forgotten a node this many times.
    pub fn forget(&self, ino: Ino, times: u64) {
        let mut core = self.core();
        if let Ok(node) = core.tree.get_mut(ino) {
            node.lookups = node.lookups.saturating_sub(times);
        }
        self.reap(&mut core, ino);
    }

    async fn make(&self, caller: Caller, parent: Ino, name: &[u8], mode: u32, body: Body) -> Result<Attr, FsError> {
        check_name(name)?;
        if self.find(parent, name).await?.is_some() {
            return Err(FsError::Exists);
        }
        let attr = {
            let mut core = self.core();
            self.make_here(&mut core, caller, parent, name, mode, body)?
        };
        self.announce(caller.mount, &[Change::Attributes(parent)]).await;
        Ok(attr)
    }

    pub(super) fn make_here(
        &self,
        core: &mut Core,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        body: Body,
    ) -> Result<Attr, FsError> {
        if core.tree.child(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let above = core.tree.get(parent)?;
        if !above.linked {
            return Err(FsError::NotFound);
        }
        core.tree.allow(above.scope, 0, 1)?;
        let part = name::encode(name).len();
        if core.tree.prefix(parent).len() + part + 1 > name::KEY_MAX || part > self.store.longest_part() {
            return Err(FsError::NameTooLong);
        }
        let ino = core.tree.next_ino();
        let is_file = matches!(body, Body::File(_));
        let attributes = Attributes {
            mode: mode & 0o7777,
            uid: caller.uid,
            gid: caller.gid,
            mtime: SystemTime::now(),
            xattrs: Default::default(),
        };
        let mut node = core.tree.blank(ino, body, attributes);
        node.known = true;
        if let Some(file) = node.file_mut() {
            file.file = Some(self.cache.create(ino)?);
            node.opens = 1;
            node.writers = 1;
        }
        core.tree.attach(node, parent, name.to_vec())?;
        core.mark(ino, is_file, self.settings.upload_delay)?;
        touch_directory(core, parent);
        let record = core.record(ino)?;
        if let Err(error) = core.commit(&[record]) {
            // The caller never learned about it, so undo everything.
            core.tree.detach(ino)?;
            core.tree.close(ino)?;
            self.reap(core, ino);
            return Err(error);
        }
        self.work.notify_one();
        Ok(core.tree.get(ino)?.attr())
    }

    /// Removes an entry from the tree, durably.
    fn remove_entry(&self, core: &mut Core, ino: Ino) -> Result<(), FsError> {
        let parent = core.tree.get(ino)?.parent;
        let mut records = core.remove(ino, self.settings.upload_delay)?;
        records.extend(keep_directory(core, parent, self.settings.upload_delay)?);
        core.commit(&records)?;
        self.reap(core, ino);
        self.work.notify_one();
        Ok(())
    }

    async fn announce_removal(&self, caller: Caller, parent: Ino, name: &[u8], ino: Ino) {
        let entry = Change::Entry { parent, name: name.to_vec() };
        self.announce(caller.mount, &[entry, Change::Attributes(parent), Change::Attributes(ino)]).await;
    }

    /// Removes a node that nothing can reach any more.
    pub(super) fn reap(&self, core: &mut Core, ino: Ino) {
        if core.tree.reap(ino) {
            self.cache.remove(ino);
        }
    }
}

/// A directory that loses an entry must not disappear with it, so from now on it has a marker.
pub(super) fn keep_directory(core: &mut Core, ino: Ino, delay: Duration) -> Result<Option<Record>, FsError> {
    touch_directory(core, ino);
    let node = core.tree.get(ino)?;
    if ino == ROOT || node.remote.is_some() || node.pending.is_some() || !node.linked {
        return Ok(None);
    }
    core.mark(ino, false, delay)?;
    core.record(ino).map(Some)
}

/// The time of a directory changes with its entries. This alone does not cause an upload.
pub(super) fn touch_directory(core: &mut Core, ino: Ino) {
    if let Ok(node) = core.tree.get_mut(ino) {
        node.attributes.mtime = SystemTime::now();
        node.ctime = node.attributes.mtime;
    }
}

pub(super) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > name::NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(FsError::Invalid);
    }
    Ok(())
}
