//! Renames entries. The tree changes atomically. Objects are copied to their new keys afterwards.
//!
//! Until then, the bytes of a node are under its old key, which is lent (see `tree`). This applies to every node below
//! a renamed directory, so the whole directory must be known first.

use std::collections::HashMap;
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};

use super::entry::{Caller, check_name, keep_directory, touch_directory};
use super::journal::Record;
use super::node::Ino;
use super::{Change, Core, FsError, Vfs};
use crate::attributes::Kind;
use crate::name;

/// What happens to an existing entry with the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    Yes,
    No,
}

impl Vfs {
    /// Moves an entry to another name, in the same or another directory.
    pub async fn rename(
        self: &Arc<Self>,
        caller: Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
    ) -> Result<(), FsError> {
        check_name(to.1)?;
        if name::encode(to.1).len() > self.store.longest_part() {
            return Err(FsError::NameTooLong);
        }
        let ino = self.find(from.0, from.1).await?.ok_or(FsError::NotFound)?;
        let target = self.find(to.0, to.1).await?;
        if self.core().tree.get(ino)?.kind() == Kind::Directory {
            self.load_below(ino).await?;
            self.learn_directories(ino).await?;
        }
        if let Some(target) = target
            && self.core().tree.get(target)?.kind() == Kind::Directory
        {
            self.read_directory(target).await?;
        }
        {
            let mut core = self.core();
            if core.tree.child(from.0, from.1)? != Some(ino) {
                return Err(FsError::NotFound);
            }
            // Look it up again, because another call may have been faster.
            let target = core.tree.child(to.0, to.1)?;
            if target == Some(ino) {
                return Ok(());
            }
            check_rename(&core, ino, to, target, replace)?;
            self.rename_here(&mut core, ino, to, target)?;
        }
        let entry = |at: (Ino, &[u8])| Change::Entry { parent: at.0, name: at.1.to_vec() };
        let parents = [Change::Attributes(from.0), Change::Attributes(to.0)];
        self.announce(caller.mount, &[[entry(from), entry(to)], parents].concat()).await;
        Ok(())
    }

    fn rename_here(&self, core: &mut Core, ino: Ino, to: (Ino, &[u8]), target: Option<Ino>) -> Result<(), FsError> {
        let delay = self.settings.upload_delay;
        let old_parent = core.tree.get(ino)?.parent;
        let mut records = match target {
            Some(target) => core.remove(target, delay)?,
            None => Vec::new(),
        };
        let mut moved = core.tree.below(ino);
        moved.insert(0, ino);
        for ino in &moved {
            for key in keys_to_hide(core, *ino)? {
                records.push(core.plan_deletion(key, delay));
            }
        }
        core.tree.relocate(ino, to.0, to.1.to_vec())?;
        for ino in moved {
            core.mark(ino, false, delay)?;
            records.extend(self.leave_key(core, ino)?);
            records.push(core.record(ino)?);
        }
        records.extend(keep_directory(core, old_parent, delay)?);
        touch_directory(core, to.0);
        core.commit(&records)?;
        if let Some(target) = target {
            self.reap(core, target);
        }
        self.work.notify_waiters();
        self.work.notify_one();
        Ok(())
    }

    /// Reads the markers below a directory. They are written again, and must not lose their attributes.
    async fn learn_directories(&self, ino: Ino) -> Result<(), FsError> {
        let unknown: Vec<Ino> = {
            let core = self.core();
            let mut all = core.tree.below(ino);
            all.push(ino);
            let is_unknown =
                |ino: &Ino| core.tree.get(*ino).is_ok_and(|node| !node.known && node.kind() == Kind::Directory);
            all.into_iter().filter(is_unknown).collect()
        };
        let learned = futures::stream::iter(unknown.into_iter().map(|ino| self.learn(ino)));
        learned.buffer_unordered(16).try_collect().await
    }

    /// Decides what happens to the object at the old key: it is lent if its bytes are needed, and deleted otherwise.
    pub(crate) fn leave_key(&self, core: &mut Core, ino: Ino) -> Result<Option<Record>, FsError> {
        core.tree.lend(ino);
        let key = core.tree.object_key(ino);
        let node = core.tree.get_mut(ino)?;
        let needed = node.kind() == Kind::File && node.pending.as_ref().is_none_or(|pending| !pending.content);
        let moved = node.remote.as_ref().is_some_and(|remote| remote.key != key);
        if !moved || needed {
            return Ok(None);
        }
        let old = node.remote.take().map(|remote| remote.key);
        Ok(old.map(|key| core.plan_deletion(key, self.settings.upload_delay)))
    }
}

/// The old key of a directory hides what is still below it. A key that was written without a response may have an
/// object.
fn keys_to_hide(core: &mut Core, ino: Ino) -> Result<Vec<String>, FsError> {
    let key = core.tree.object_key(ino);
    let node = core.tree.get_mut(ino)?;
    let mut keys: Vec<String> = node.attempted.take().into_iter().collect();
    if node.kind() == Kind::Directory && !keys.contains(&key) {
        keys.push(key);
    }
    Ok(keys)
}

fn check_rename(core: &Core, ino: Ino, to: (Ino, &[u8]), target: Option<Ino>, replace: Replace) -> Result<(), FsError> {
    let tree = &core.tree;
    let node = tree.get(ino)?;
    let above = tree.get(to.0)?;
    if !above.linked {
        return Err(FsError::NotFound);
    }
    if tree.is_within(to.0, ino) {
        return Err(FsError::Invalid);
    }
    if let Some(target) = target {
        let target = tree.get(target)?;
        if replace == Replace::No {
            return Err(FsError::Exists);
        }
        match (node.kind(), target.directory()) {
            (Kind::Directory, None) => return Err(FsError::NotDirectory),
            (Kind::Directory, Some(directory)) if !directory.children.is_empty() => return Err(FsError::NotEmpty),
            (Kind::File | Kind::Symlink, Some(_)) => return Err(FsError::IsDirectory),
            _ => {}
        }
    }
    let moved = tree.below(ino);
    if node.scope != above.scope {
        let weights = moved.iter().filter_map(|ino| tree.get(*ino).ok()).map(|node| node.weight());
        tree.allow(above.scope, node.weight() + weights.sum::<u64>(), 1 + moved.len() as u64)?;
    }
    check_lengths(core, ino, &moved, tree.prefix(to.0).len() + name::encode(to.1).len())
}

/// Every key below the new name must still be short enough for S3.
fn check_lengths(core: &Core, ino: Ino, moved: &[Ino], top: usize) -> Result<(), FsError> {
    let mut lengths = HashMap::from([(ino, top)]);
    let mut longest = top;
    for below in moved {
        let node = core.tree.get(*below)?;
        let above = lengths.get(&node.parent).copied().unwrap_or(top);
        let length = above + 1 + name::encode(&node.name).len();
        lengths.insert(*below, length);
        longest = longest.max(length);
    }
    if longest + 1 > name::KEY_MAX { Err(FsError::NameTooLong) } else { Ok(()) }
}
