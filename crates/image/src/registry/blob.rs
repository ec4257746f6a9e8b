//! Downloads one blob into the store. If the connection breaks, the download continues where it stopped, within one
//! pull and also from one pull to the next. If several pulls want the same blob, one downloads it and the others wait.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::http::header::{CONTENT_RANGE, RANGE};
use ::http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use isopod_outbound::ResponseBody;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::auth::Session;
use super::{IDLE_TIMEOUT, Progress, PullError, short};
use crate::Digest;
use crate::manifest::Descriptor;
use crate::store::{Store, StoreError, failed};

/// How often a connection may break before a pull gives up, and how long it waits before a retry. The wait grows each
/// time.
const MAX_BREAKS: u32 = 8;
const REST: Duration = Duration::from_millis(100);
/// The number of bytes after which the disk space is checked again.
pub(super) const LOOK_EVERY: u64 = 16 << 20;
/// How often to check whether another pull has finished with the same blob.
const TURN: Duration = Duration::from_millis(50);

impl Session<'_> {
    /// Downloads a blob and adds it to the store after it is complete and verified.
    pub(super) async fn blob(
        &mut self,
        store: &Store,
        part: &Descriptor,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), PullError> {
        let Some(mut partial) = Partial::open(store, &part.digest).await? else { return Ok(()) };
        let was_begun = partial.have > 0;
        self.fill(store, &mut partial, part, progress).await?;
        match self.accept(store, part).await {
            // The part that an earlier pull left may be corrupt, so download the blob again.
            Err(PullError::Store(StoreError::Digest { .. })) if was_begun => {
                drop(partial);
                let Some(mut partial) = Partial::open(store, &part.digest).await? else { return Ok(()) };
                self.fill(store, &mut partial, part, progress).await?;
                self.accept(store, part).await
            }
            accepted => accepted,
        }
    }

    async fn fill(
        &mut self,
        store: &Store,
        partial: &mut Partial,
        part: &Descriptor,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), PullError> {
        if partial.have > part.size {
            partial.begin_anew()?;
        }
        let mut breaks = 0;
        while partial.have < part.size {
            match self.go_on(store, partial, part).await {
                Ok(()) => {}
                Err(error @ PullError::Unreachable { .. }) if breaks == MAX_BREAKS => return Err(error),
                Err(PullError::Unreachable { reason, .. }) => {
                    breaks += 1;
                    let message =
                        format!("resuming the pull of {} at byte {} ({reason})", short(&part.digest), partial.have);
                    progress(Progress { message });
                    tokio::time::sleep(REST * breaks).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Requests the missing part and writes the received data.
    async fn go_on(&mut self, store: &Store, partial: &mut Partial, part: &Descriptor) -> Result<(), PullError> {
        let mut headers = HeaderMap::new();
        if partial.have > 0 {
            headers.insert(RANGE, HeaderValue::try_from(format!("bytes={}-", partial.have)).expect("digits are valid"));
        }
        let reply = self.get(&format!("blobs/{}", part.digest), headers).await?;
        if partial.have > 0 && !is_rest(&reply, partial.have) {
            // The registry sends the whole blob, so the existing part is not needed.
            partial.begin_anew()?;
        }
        let mut body = reply.into_body();
        loop {
            let frame = tokio::time::timeout(IDLE_TIMEOUT, body.frame()).await;
            let frame = frame.map_err(|_| self.unreachable("it stopped sending".to_owned()))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| self.unreachable(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if partial.have + data.len() as u64 > part.size {
                return Err(self.nonsense("more data than the manifest declares".to_owned()));
            }
            // Other programs may write to the same disk in the meantime.
            if partial.is_look_due(data.len() as u64) && store.room() == 0 {
                return Err(PullError::NoRoom { wanted: part.size - partial.have, room: 0 });
            }
            partial.write(&data)?;
        }
        if partial.have < part.size {
            return Err(self.unreachable("it closed the connection too early".to_owned()));
        }
        Ok(())
    }

    async fn accept(&self, store: &Store, part: &Descriptor) -> Result<(), PullError> {
        let (store, digest, stop) = (store.clone(), part.digest.clone(), Arc::new(AtomicBool::new(false)));
        // Hashing takes long. It is stopped if the pull is cancelled.
        let _stop = StopOnDrop(Arc::clone(&stop));
        let accepted = tokio::task::spawn_blocking(move || store.accept(&digest, &stop)).await;
        Ok(accepted.map_err(|error| self.nonsense(error.to_string()))??)
    }
}

/// Tells a thread that its result is no longer needed.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether a response contains exactly the bytes after the first `have` ones.
fn is_rest(reply: &Response<ResponseBody>, have: u64) -> bool {
    let range = reply.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    reply.status() == StatusCode::PARTIAL_CONTENT && range.starts_with(&format!("bytes {have}-"))
}

/// The first part of a blob, locked by the pull that continues it.
struct Partial {
    file: File,
    path: PathBuf,
    have: u64,
    /// The number of bytes written since the last check of the disk space.
    since_look: u64,
}

impl Partial {
    /// Returns `None` if the blob is already in the store, for example because another pull has just added it.
    async fn open(store: &Store, digest: &Digest) -> Result<Option<Self>, PullError> {
        let path = store.partial(digest);
        loop {
            let file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed("write", &path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if store.blob(digest).is_some() => {
                    // This is only the empty file that was created above: the pull that added the blob has moved its
                    // own file away.
                    let _ = std::fs::remove_file(&path);
                    return Ok(None);
                }
                Ok(()) if is_same(&file, &path) => {
                    let have = file.metadata().map_err(failed("read", &path))?.len();
                    return Ok(Some(Self { file, path, have, since_look: 0 }));
                }
                // The file was removed or moved while this waited for the lock.
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => tokio::time::sleep(TURN).await,
                Err(error) => return Err(failed("lock", &path)(error.into()).into()),
            }
        }
    }

    /// Whether the disk space must be checked before writing `bytes` more.
    fn is_look_due(&mut self, bytes: u64) -> bool {
        self.since_look += bytes;
        let is_due = self.since_look >= LOOK_EVERY;
        if is_due {
            self.since_look = 0;
        }
        is_due
    }

    fn begin_anew(&mut self) -> Result<(), StoreError> {
        self.have = 0;
        self.file.set_len(0).map_err(failed("write", &self.path))
    }

    fn write(&mut self, data: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(data).map_err(failed("write", &self.path))?;
        self.have += data.len() as u64;
        Ok(())
    }
}

fn is_same(file: &File, path: &Path) -> bool {
    let identity = |metadata: io::Result<std::fs::Metadata>| metadata.map(|found| (found.dev(), found.ino())).ok();
    identity(file.metadata()).is_some_and(|held| identity(path.metadata()) == Some(held))
}
