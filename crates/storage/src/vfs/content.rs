//! Changes the bytes of files: opening, writing, truncating, and making them durable.
//!
//! Bytes are written only to the local copy. Before the first byte of a file changes, the whole file is local and the
//! journal says so. From then on the copy is authoritative until it is uploaded, and its length is the length of the
//! file.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use super::journal::Record;
use super::node::Ino;
use super::{Caller, Change, Core, FsError, Vfs};
use crate::attributes::Kind;

/// After this many contiguous bytes, the written data is sent to the disk.
const STREAM_STEP: u64 = 8 << 20;

/// How long it may take until a close by a program arrives here.
const CLOSE_DELAY: Duration = Duration::from_millis(100);

/// The maximum size of an object in S3.
const SIZE_MAX: u64 = 5 << 40;

impl Vfs {
    pub async fn open_file(self: &Arc<Self>, ino: Ino, write: bool, truncate: bool) -> Result<(), FsError> {
        self.learn(ino).await?;
        match self.core().tree.get(ino)?.kind() {
            Kind::Directory => return Err(FsError::IsDirectory),
            Kind::Symlink => return Err(FsError::Invalid),
            Kind::File => {}
        }
        if truncate {
            self.truncate(ino, 0).await?;
        }
        let mut core = self.core();
        let node = core.tree.open(ino)?;
        node.writers += u32::from(write);
        if node.opens == 1 && node.linked && node.remote.is_some() {
            let record = core.opened_record(ino)?;
            core.commit(&[record])?;
        }
        Ok(())
    }

    /// Closes a file that was opened in the same way. Everything written survives a crash of this process.
    pub fn close_file(&self, ino: Ino, write: bool) -> Result<(), FsError> {
        let mut core = self.core();
        let node = core.tree.close(ino)?;
        node.writers = node.writers.saturating_sub(u32::from(write));
        let (idle, linked, pending) = (node.opens == 0, node.linked, node.pending.is_some());
        let was_noted = node.remote.is_some();
        if idle {
            self.put_away(&mut core, ino)?;
        }
        let mut records = Vec::new();
        if write && linked && pending {
            records.push(core.record(ino)?);
            self.work.notify_one();
        }
        if idle && was_noted {
            records.push(Record::Closed(ino));
        }
        core.commit(&records)?;
        self.reap(&mut core, ino);
        Ok(())
    }

    /// Writes bytes at an offset or at the end, and returns the position at which they were written.
    pub async fn write(
        self: &Arc<Self>,
        caller: Caller,
        ino: Ino,
        offset: u64,
        data: &[u8],
        append: bool,
    ) -> Result<u64, FsError> {
        let file = self.writable(ino).await?;
        let length = data.len() as u64;
        let mut reserved = self.reserve(ino, offset, length, append);
        if matches!(reserved, Err(FsError::Quota)) {
            // The kernel reports a close only after the program has continued. So files that were just removed may
            // still count for a moment.
            tokio::time::sleep(CLOSE_DELAY).await;
            reserved = self.reserve(ino, offset, length, append);
        }
        let at = reserved?;
        if let Err(source) = file.write_all_at(data, at) {
            self.remeasure(ino, &file)?;
            return Err(FsError::Local { what: "write to", source });
        }
        self.stream_out(ino, file, at..at + data.len() as u64);
        self.announce(caller.mount, &[Change::Content(ino)]).await;
        Ok(at)
    }

    /// Makes the file long enough for a write, and returns the position of the write.
    fn reserve(&self, ino: Ino, offset: u64, length: u64, append: bool) -> Result<u64, FsError> {
        let mut core = self.core();
        let node = core.tree.get(ino)?;
        let (size, scope) = (node.size(), node.scope);
        let at = if append { size } else { offset };
        let end = at.checked_add(length).filter(|end| *end <= SIZE_MAX).ok_or(FsError::TooLarge)?;
        core.tree.allow(scope, end.saturating_sub(size), 0)?;
        core.tree.resize(ino, size.max(end))?;
        self.wrote(&mut core, ino)?;
        Ok(at)
    }

    /// Starts writing to the disk while a long file is still being written, so that an fsync at its end has little to
    /// wait for.
    fn stream_out(&self, ino: Ino, file: Arc<File>, written: Range<u64>) {
        let due = {
            let mut core = self.core();
            let Some(body) = core.tree.get_mut(ino).ok().and_then(|node| node.file_mut()) else { return };
            let start = if body.streamed.end == written.start { body.streamed.start } else { written.start };
            body.streamed = start..written.end;
            if written.end - start < STREAM_STEP {
                return;
            }
            std::mem::replace(&mut body.streamed, written.end..written.end)
        };
        // For dirty pages, this advice only starts the write and does not wait for it.
        tokio::task::spawn_blocking(move || {
            let length = std::num::NonZeroU64::new(due.end - due.start);
            let _ = rustix::fs::fadvise(&file, due.start, length, rustix::fs::Advice::DontNeed);
        });
    }

    /// Truncates a file, or extends it with zeros.
    pub(super) async fn truncate(self: &Arc<Self>, ino: Ino, size: u64) -> Result<(), FsError> {
        if size > SIZE_MAX {
            return Err(FsError::TooLarge);
        }
        if size == 0 {
            let mut core = self.core();
            self.check_file(&core, ino)?;
            return self.empty(&mut core, ino);
        }
        let file = self.writable(ino).await?;
        let mut core = self.core();
        let node = core.tree.get(ino)?;
        core.tree.allow(node.scope, size.saturating_sub(node.size()), 0)?;
        file.set_len(size).map_err(|source| FsError::Local { what: "resize", source })?;
        core.tree.resize(ino, size)?;
        self.wrote(&mut core, ino)?;
        self.note(&mut core, ino)
    }

    /// Makes a file, and every change of names so far, survive a power failure.
    pub async fn sync_file(&self, ino: Ino) -> Result<(), FsError> {
        let (file, syncer) = {
            let mut core = self.core();
            let node = core.tree.get(ino)?;
            let dirty = node.pending.as_ref().is_some_and(|pending| pending.content);
            let file = if dirty { Some(self.local_file(&mut core, ino)?) } else { None };
            self.note(&mut core, ino)?;
            (file, core.journal.syncer())
        };
        let failed = |source| FsError::Local { what: "make durable", source };
        let directory = self.cache.directory().map_err(failed)?;
        let work = move || {
            file.map_or(Ok(()), |file| file.sync_data())?;
            syncer.sync(|| directory.sync_all())
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| failed(std::io::Error::other(error)))?.map_err(failed)
    }

    /// The local copy of a file, ready to be changed.
    async fn writable(self: &Arc<Self>, ino: Ino) -> Result<Arc<File>, FsError> {
        loop {
            {
                let mut core = self.core();
                self.check_file(&core, ino)?;
                let node = core.tree.get(ino)?;
                let dirty = node.pending.as_ref().is_some_and(|pending| pending.content);
                let (local, size) = node.file().map_or((false, 0), |file| (file.local, file.size));
                if !local && size == 0 {
                    self.empty(&mut core, ino)?;
                    return self.local_file(&mut core, ino);
                }
                if local {
                    let file = self.local_file(&mut core, ino)?;
                    if !dirty {
                        self.begin_change(&mut core, ino)?;
                    }
                    return Ok(file);
                }
            }
            self.localize(ino).await?;
        }
    }

    /// Records in the journal that the local copy is authoritative from now on.
    pub(crate) fn begin_change(&self, core: &mut Core, ino: Ino) -> Result<(), FsError> {
        if !core.tree.get(ino)?.linked {
            return Ok(());
        }
        core.mark(ino, true, self.settings.upload_delay)?;
        let left = self.leave_key(core, ino)?;
        let record = core.record(ino)?;
        let records: Vec<_> = left.into_iter().chain([record]).collect();
        core.commit(&records)?;
        self.work.notify_one();
        Ok(())
    }

    /// Makes a file empty, whatever it was.
    fn empty(&self, core: &mut Core, ino: Ino) -> Result<(), FsError> {
        let copy = self.cache.create(ino)?;
        core.tree.resize(ino, 0)?;
        let node = core.tree.get_mut(ino)?;
        let open = node.opens > 0;
        if let Some(file) = node.file_mut() {
            file.local = true;
            file.copy = None;
            file.file = open.then_some(copy);
        }
        self.begin_change(core, ino)?;
        self.wrote(core, ino)
    }

    /// Records that the bytes have changed.
    fn wrote(&self, core: &mut Core, ino: Ino) -> Result<(), FsError> {
        let now = SystemTime::now();
        let node = core.tree.get_mut(ino)?;
        node.attributes.mtime = now;
        // As everywhere, writing to a file clears its set-uid and set-gid bits.
        node.attributes.mode &= !0o6000;
        if node.linked {
            core.mark(ino, true, self.settings.upload_delay)?;
        }
        Ok(())
    }

    /// Records a node in the journal, if something is pending for it.
    fn note(&self, core: &mut Core, ino: Ino) -> Result<(), FsError> {
        let node = core.tree.get(ino)?;
        if node.linked && node.pending.is_some() {
            let record = core.record(ino)?;
            core.commit(&[record])?;
        }
        Ok(())
    }

    /// The open local copy. It is kept open while a program has the file open.
    pub(crate) fn local_file(&self, core: &mut Core, ino: Ino) -> Result<Arc<File>, FsError> {
        let node = core.tree.get_mut(ino)?;
        let open = node.opens > 0;
        let file = node.file_mut().ok_or(FsError::IsDirectory)?;
        file.used = Some(Instant::now());
        if let Some(file) = &file.file {
            return Ok(file.clone());
        }
        let copy = self.cache.open_copy(ino)?;
        file.file = open.then(|| copy.clone());
        Ok(copy)
    }

    /// Called when no program has the file open any more: closes descriptors, and keeps complete copies by name.
    fn put_away(&self, core: &mut Core, ino: Ino) -> Result<(), FsError> {
        let Some(file) = core.tree.get_mut(ino)?.file_mut() else { return Ok(()) };
        file.file = None;
        file.used = Some(Instant::now());
        if let Some(copy) = file.copy.take()
            && !file.local
            && copy.is_complete()
            && self.cache.adopt(ino, &copy).is_ok()
        {
            file.local = true;
            self.cached_bytes.fetch_add(copy.remote.size, Ordering::Relaxed);
            self.trim_cache(core);
        }
        Ok(())
    }

    /// After a failed write, the length of the copy is the length of the file.
    fn remeasure(&self, ino: Ino, file: &File) -> Result<(), FsError> {
        let length = file.metadata().map_err(|source| FsError::Local { what: "look at", source })?.len();
        self.core().tree.resize(ino, length)
    }

    fn check_file(&self, core: &Core, ino: Ino) -> Result<(), FsError> {
        match core.tree.get(ino)?.kind() {
            Kind::File => Ok(()),
            Kind::Directory => Err(FsError::IsDirectory),
            Kind::Symlink => Err(FsError::Invalid),
        }
    }
}
