//! One blob on its way into the store. A connection that breaks is taken up again where it stopped, within one pull and
//! from one pull to the next; whoever else wants the same blob waits for the one who is at it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::http::header::{CONTENT_RANGE, RANGE};
use ::http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::auth::Session;
use super::{Progress, PullError, SILENCE, short};
use crate::Digest;
use crate::manifest::Descriptor;
use crate::store::{Store, StoreError, failed};

/// How often a connection may break before a pull gives up, and how long it rests first, longer each time.
const MOST_BREAKS: u32 = 8;
const REST: Duration = Duration::from_millis(100);
/// How often to look whether somebody else is done with the same blob.
const TURN: Duration = Duration::from_millis(50);

impl Session<'_> {
    /// A blob, put into the store once it is whole and right.
    pub(super) async fn blob(
        &mut self,
        store: &Store,
        part: &Descriptor,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), PullError> {
        let Some(mut partial) = Partial::open(store, &part.digest).await? else { return Ok(()) };
        let was_begun = partial.have > 0;
        self.fill(&mut partial, part, progress).await?;
        match self.accept(store, part).await {
            // What an earlier pull left may be what is wrong with it.
            Err(PullError::Store(StoreError::Digest { .. })) if was_begun => {
                drop(partial);
                let Some(mut partial) = Partial::open(store, &part.digest).await? else { return Ok(()) };
                self.fill(&mut partial, part, progress).await?;
                self.accept(store, part).await
            }
            accepted => accepted,
        }
    }

    async fn fill(
        &mut self,
        partial: &mut Partial,
        part: &Descriptor,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), PullError> {
        if partial.have > part.size {
            partial.begin_anew()?;
        }
        let mut breaks = 0;
        while partial.have < part.size {
            match self.go_on(partial, part).await {
                Ok(()) => {}
                Err(error @ PullError::Unreachable { .. }) if breaks == MOST_BREAKS => return Err(error),
                Err(PullError::Unreachable { reason, .. }) => {
                    breaks += 1;
                    let message =
                        format!("pulling {} goes on at byte {} ({reason})", short(&part.digest), partial.have);
                    progress(Progress { message });
                    tokio::time::sleep(REST * breaks).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks for what is missing, and writes what comes.
    async fn go_on(&mut self, partial: &mut Partial, part: &Descriptor) -> Result<(), PullError> {
        let mut headers = HeaderMap::new();
        if partial.have > 0 {
            headers.insert(RANGE, HeaderValue::try_from(format!("bytes={}-", partial.have)).expect("it is a number"));
        }
        let reply = self.get(&format!("blobs/{}", part.digest), headers).await?;
        if partial.have > 0 && !is_rest(&reply, partial.have) {
            // It gives the whole, so what there was is not needed.
            partial.begin_anew()?;
        }
        let mut body = reply.into_body();
        loop {
            let frame = tokio::time::timeout(SILENCE, body.frame()).await;
            let frame = frame.map_err(|_| self.unreachable("it stopped sending".to_owned()))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| self.unreachable(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if partial.have + data.len() as u64 > part.size {
                return Err(self.nonsense("more than the manifest says".to_owned()));
            }
            partial.write(&data)?;
        }
        if partial.have < part.size {
            return Err(self.unreachable("it stopped before the end".to_owned()));
        }
        Ok(())
    }

    async fn accept(&self, store: &Store, part: &Descriptor) -> Result<(), PullError> {
        let (store, digest) = (store.clone(), part.digest.clone());
        let accepted = tokio::task::spawn_blocking(move || store.accept(&digest)).await;
        Ok(accepted.map_err(|error| self.nonsense(error.to_string()))??)
    }
}

/// Whether a reply is what follows the first `have` bytes, and nothing else.
fn is_rest(reply: &Response<Incoming>, have: u64) -> bool {
    let range = reply.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    reply.status() == StatusCode::PARTIAL_CONTENT && range.starts_with(&format!("bytes {have}-"))
}

/// The beginning of a blob, held by whoever continues it.
struct Partial {
    file: File,
    path: PathBuf,
    have: u64,
}

impl Partial {
    /// None when the blob is in the store, perhaps because somebody else has just brought it.
    async fn open(store: &Store, digest: &Digest) -> Result<Option<Self>, PullError> {
        let path = store.partial(digest);
        loop {
            let file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed("write", &path))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if store.blob(digest).is_some() => {
                    // Only an empty one that was made above: whoever brought the blob has moved theirs away.
                    let _ = std::fs::remove_file(&path);
                    return Ok(None);
                }
                Ok(()) if is_same(&file, &path) => {
                    let have = file.metadata().map_err(failed("read", &path))?.len();
                    return Ok(Some(Self { file, path, have }));
                }
                // It was taken away while this waited for it.
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => tokio::time::sleep(TURN).await,
                Err(error) => return Err(failed("lock", &path)(error.into()).into()),
            }
        }
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
