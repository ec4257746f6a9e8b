//! Reads files: from the local copy if it is complete, otherwise from the object, one chunk at a time and a few chunks
//! ahead.
//!
//! Chunks are fetched with the tag of the object as it was first seen, so that a reader never sees a mix of two
//! versions. If two readers need the same chunk, it is fetched once.

use std::collections::HashMap;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use tokio::sync::OnceCell;

use super::cache::{CHUNK, RemoteCopy};
use super::node::{Ino, Remote};
use super::{FsError, Vfs};
use crate::object::StoreError;

/// How many chunks are fetched in advance.
const READ_AHEAD: u64 = 4;

/// How often an object may change while it is being read.
const ATTEMPTS: u32 = 5;

/// The chunks that are being fetched, by the copy that they belong to.
pub(crate) type Fetches = Mutex<HashMap<(usize, u64), Arc<OnceCell<()>>>>;

impl Vfs {
    /// Reads bytes of a file. Returns fewer than requested only at its end.
    pub async fn read(self: &Arc<Self>, ino: Ino, offset: u64, length: usize) -> Result<Vec<u8>, FsError> {
        let mut attempts = 0;
        loop {
            let (source, size) = self.source(ino)?;
            let end = offset.saturating_add(length as u64).min(size);
            if offset >= end {
                return Ok(Vec::new());
            }
            let mut buffer = vec![0; (end - offset) as usize];
            let copy = match source {
                Source::Local(file) => {
                    let got = read_some(&file, &mut buffer, offset)?;
                    // The rest is in a hole at the end that another call is creating at the moment.
                    buffer[got..].fill(0);
                    return Ok(buffer);
                }
                Source::Remote(copy) => copy,
            };
            match self.fetch_range(&copy, offset, end).await {
                Ok(()) => {
                    read_some(&copy.file, &mut buffer, offset)?;
                    return Ok(buffer);
                }
                Err(error) if is_outdated(&error) && attempts < ATTEMPTS => {
                    attempts += 1;
                    self.look_again(ino).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Fetches all bytes of a file into its local copy.
    pub(crate) async fn localize(self: &Arc<Self>, ino: Ino) -> Result<(), FsError> {
        let mut attempts = 0;
        loop {
            match self.localize_once(ino).await {
                Err(error) if is_outdated(&error) && attempts < ATTEMPTS => {
                    attempts += 1;
                    self.look_again(ino).await?;
                }
                done => return done,
            }
        }
    }

    async fn localize_once(self: &Arc<Self>, ino: Ino) -> Result<(), FsError> {
        let (source, _) = self.source(ino)?;
        let Source::Remote(copy) = source else { return Ok(()) };
        let chunks = 0..copy.remote.size.div_ceil(CHUNK);
        let fetches = futures::stream::iter(chunks.map(|chunk| self.fetch(&copy, chunk)));
        let mut fetches = fetches.buffer_unordered(READ_AHEAD as usize);
        while let Some(fetched) = fetches.next().await {
            fetched?;
        }
        let mut core = self.core();
        let Some(file) = core.tree.get_mut(ino)?.file_mut() else { return Err(FsError::Stale) };
        if file.local || !file.copy.as_ref().is_some_and(|current| Arc::ptr_eq(current, &copy)) {
            // Another task was faster, or the object was replaced. The caller checks again.
            return Ok(());
        }
        self.cache.adopt(ino, &copy)?;
        file.local = true;
        file.file = None;
        file.copy = None;
        self.cached_bytes.fetch_add(copy.remote.size, Ordering::Relaxed);
        Ok(())
    }

    /// Where the bytes of a file are.
    fn source(&self, ino: Ino) -> Result<(Source, u64), FsError> {
        let mut core = self.core();
        let node = core.tree.get(ino)?;
        let remote = node.remote.clone();
        let file = node.file().ok_or(FsError::IsDirectory)?;
        let size = file.size;
        if file.local {
            return Ok((Source::Local(self.local_file(&mut core, ino)?), size));
        }
        let remote = remote.ok_or(FsError::Stale)?;
        let file = core.tree.get_mut(ino)?.file_mut().ok_or(FsError::IsDirectory)?;
        if let Some(copy) = file.copy.as_ref().filter(|copy| copy.remote.tag == remote.tag) {
            return Ok((Source::Remote(copy.clone()), size.min(remote.size)));
        }
        let copy = self.cache.remote_copy(&remote)?;
        file.copy = Some(copy.clone());
        Ok((Source::Remote(copy), size.min(remote.size)))
    }

    async fn fetch_range(self: &Arc<Self>, copy: &Arc<RemoteCopy>, from: u64, to: u64) -> Result<(), FsError> {
        let was_missing = copy.first_missing(from, to).is_some();
        let last = (to - 1) / CHUNK;
        let in_order = from / CHUNK == 0 || copy.has(from / CHUNK - 1);
        if in_order {
            let chunks = copy.remote.size.div_ceil(CHUNK);
            for chunk in (last + 1..(last + 1 + READ_AHEAD).min(chunks)).filter(|chunk| !copy.has(*chunk)) {
                self.fetch_ahead(copy, chunk);
            }
        }
        if was_missing {
            while let Some(chunk) = copy.first_missing(from, to) {
                self.fetch(copy, chunk).await?;
            }
        }
        Ok(())
    }

    fn fetch_ahead(self: &Arc<Self>, copy: &Arc<RemoteCopy>, chunk: u64) {
        if self.fetches.lock().expect("no panic while held").contains_key(&(Arc::as_ptr(copy) as usize, chunk)) {
            return;
        }
        let (vfs, copy) = (self.clone(), copy.clone());
        tokio::spawn(async move {
            if let Err(error) = vfs.fetch(&copy, chunk).await {
                tracing::debug!(%error, "could not read a chunk ahead");
            }
        });
    }

    async fn fetch(self: &Arc<Self>, copy: &Arc<RemoteCopy>, chunk: u64) -> Result<(), FsError> {
        if copy.has(chunk) {
            return Ok(());
        }
        let place = (Arc::as_ptr(copy) as usize, chunk);
        let cell = self.fetches.lock().expect("no panic while held").entry(place).or_default().clone();
        let result = cell.get_or_try_init(|| self.fetch_now(copy, chunk)).await.map(drop);
        self.fetches.lock().expect("no panic while held").remove(&place);
        result
    }

    async fn fetch_now(&self, copy: &Arc<RemoteCopy>, chunk: u64) -> Result<(), FsError> {
        if copy.has(chunk) {
            return Ok(());
        }
        let remote = &copy.remote;
        let range = chunk * CHUNK..((chunk + 1) * CHUNK).min(remote.size);
        let bytes = self.retry(|| self.store.get(&remote.key, &remote.tag, range.clone())).await?;
        copy.file.write_all_at(&bytes, range.start).map_err(|source| FsError::Local { what: "write to", source })?;
        copy.arrived(chunk);
        Ok(())
    }

    /// The object has changed. Asks the store for its current state.
    async fn look_again(&self, ino: Ino) -> Result<(), FsError> {
        let moved = {
            let mut core = self.core();
            let node = core.tree.get_mut(ino)?;
            if let Some(file) = node.file_mut() {
                file.copy = None;
            }
            let moved = !node.linked || node.pending.is_some();
            if moved { Some(node.remote.clone().ok_or(FsError::Stale)?) } else { None }
        };
        if let Some(remote) = moved {
            return self.take_object_as_it_is(ino, &remote).await;
        }
        let (parent, name) = {
            let mut core = self.core();
            let node = core.tree.get_mut(ino)?;
            node.checked = None;
            node.known = false;
            let place = (node.parent, node.name.clone());
            if let Some(directory) = core.tree.get_mut(place.0)?.directory_mut() {
                directory.listed = None;
            }
            place
        };
        match self.find(parent, &name).await? {
            Some(found) if found == ino => self.learn(ino).await,
            _ => Err(FsError::Stale),
        }
    }
}

impl Vfs {
    /// Updates a node that has been moved from its object at the old key, because only the object itself shows its
    /// state.
    ///
    /// Besides other tools, we may have changed it ourselves: a crash may happen between an upload and its record.
    async fn take_object_as_it_is(&self, ino: Ino, remote: &Remote) -> Result<(), FsError> {
        let object = self.retry(|| self.store.head(&remote.key)).await?.ok_or(FsError::Stale)?;
        let mut core = self.core();
        if core.tree.get(ino)?.remote.as_ref() != Some(remote) {
            return Ok(());
        }
        core.tree.resize(ino, object.size)?;
        core.tree.set_remote(ino, Some(Remote { key: object.key, tag: object.tag, size: object.size }))
    }
}

enum Source {
    Local(Arc<std::fs::File>),
    Remote(Arc<RemoteCopy>),
}

/// Whether the object is no longer the one that was to be read.
fn is_outdated(error: &FsError) -> bool {
    matches!(error, FsError::Store(StoreError::Changed(_) | StoreError::NotFound(_)))
}

/// Fills the buffer as far as the file reaches.
fn read_some(file: &std::fs::File, buffer: &mut [u8], offset: u64) -> Result<usize, FsError> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(FsError::Local { what: "read", source }),
        }
    }
    Ok(done)
}
