//! Reads and sets attributes, and computes the figures of the whole file system.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use super::node::{Ino, ROOT};
use super::{Attr, Caller, Change, FsError, Quota, Usage, Vfs};

/// The attributes to set. The others stay unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub mtime: Option<SystemTime>,
}

/// Space and files, as statfs reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statfs {
    pub total: u64,
    pub free: u64,
    pub files: u64,
    pub free_files: u64,
}

/// How long a mount waits until everything below it is counted.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Loads everything below a directory, with as many attempts as necessary. What is loaded is counted.
async fn count_below(vfs: Weak<Vfs>, ino: Ino) {
    let mut pause = FIRST_PAUSE;
    while let Some(vfs) = vfs.upgrade() {
        match vfs.load_below(ino).await {
            Ok(()) | Err(FsError::Stale) => return,
            Err(error) => tracing::warn!(%error, ino, "could not count the usage of a quota yet; will retry"),
        }
        drop(vfs);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

impl Vfs {
    /// The current attributes of a node.
    pub async fn attr(&self, ino: Ino) -> Result<Attr, FsError> {
        let is_put_back = self.is_put_back(ino)?;
        let place = {
            let core = self.core();
            let node = core.tree.get(ino)?;
            let settled = ino == ROOT || !node.linked || node.pending.is_some() || is_put_back;
            (!settled).then(|| (node.parent, node.name.clone()))
        };
        if let Some((parent, name)) = place {
            // It may have been replaced by another tool. This updates the tree.
            self.find(parent, &name).await?;
        }
        if self.core().tree.get(ino)?.linked {
            self.learn_or_guess(ino).await?;
        }
        Ok(self.core().tree.get(ino)?.attr())
    }

    /// Sets all of the attributes or none.
    pub async fn set_attr(self: &Arc<Self>, caller: Caller, ino: Ino, set: SetAttr) -> Result<Attr, FsError> {
        self.learn(ino).await?;
        if let Some(size) = set.size {
            self.truncate(ino, size).await?;
        }
        let attr = {
            let mut core = self.core();
            let node = core.tree.get_mut(ino)?;
            let before = node.attributes.clone();
            let attributes = &mut node.attributes;
            attributes.mode = set.mode.map_or(attributes.mode, |mode| mode & 0o7777);
            attributes.uid = set.uid.unwrap_or(attributes.uid);
            attributes.gid = set.gid.unwrap_or(attributes.gid);
            attributes.mtime = set.mtime.unwrap_or(attributes.mtime);
            if node.attributes != before && node.linked && ino != ROOT {
                core.mark(ino, false, self.settings.upload_delay)?;
                let record = core.record(ino)?;
                core.commit(&[record])?;
                self.work.notify_one();
            }
            core.tree.get(ino)?.attr()
        };
        let change = if set.size.is_some() { Change::Content(ino) } else { Change::Attributes(ino) };
        self.announce(caller.mount, &[change]).await;
        Ok(attr)
    }

    /// Limits what may be below a directory, and counts what is there.
    ///
    /// What the bucket cannot list within a moment is counted afterwards, because a large execution or an unresponsive
    /// bucket must not keep a sandbox from starting.
    pub async fn limit(&self, ino: Ino, quota: Quota) -> Result<(), FsError> {
        self.core().tree.set_scope(ino, quota)?;
        let counting = tokio::spawn(count_below(self.me.clone(), ino));
        if tokio::time::timeout(COUNT_TIMEOUT, counting).await.is_err() {
            tracing::info!(ino, "counting the usage of a quota in the background");
        }
        Ok(())
    }

    /// The usage below a directory that has a quota.
    pub fn usage(&self, ino: Ino) -> Option<(Usage, Quota)> {
        self.core().tree.usage(ino)
    }

    /// The space below a directory: that of its quota, or else that of the disk with the local copies.
    pub fn statfs(&self, ino: Ino) -> Result<Statfs, FsError> {
        let scope = {
            let core = self.core();
            core.tree.get(ino)?.scope.and_then(|scope| core.tree.usage(scope))
        };
        let (disk, disk_free) = self.cache.statfs().map_err(|source| FsError::Local { what: "look at", source })?;
        let (usage, quota) = scope.unwrap_or_default();
        let (total, free) = match quota.bytes {
            Some(limit) => (limit, limit.saturating_sub(usage.bytes).min(disk_free)),
            None => (disk, disk_free),
        };
        let (files, free_files) = match quota.files {
            Some(limit) => (limit, limit.saturating_sub(usage.files)),
            None => (u64::from(u32::MAX), u64::from(u32::MAX)),
        };
        Ok(Statfs { total, free, files, free_files })
    }
}
