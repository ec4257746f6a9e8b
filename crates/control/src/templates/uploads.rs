//! Files that clients upload for builds: single-use links, and the uploaded archives.
//!
//! An archive is received into a temporary file and renamed when it is complete. Then its row is written. The next
//! start removes partial files of an earlier server.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream};
use futures::StreamExt as _;
use isopod_store::secrets::new_token;
use isopod_store::{Store, StoreError, TeamId};
use tokio::io::AsyncWriteExt as _;

use super::ledger::{Ledger, Reservation, TeamFull};
use super::limits::BuildLimits;

#[derive(Debug)]
pub(crate) struct Uploads {
    dir: PathBuf,
    limits: BuildLimits,
    ledger: Arc<Ledger>,
    /// Links that were not used yet. Locked for a few instructions, when one is created or used.
    links: Mutex<HashMap<String, Link>>,
}

#[derive(Debug)]
struct Link {
    team: TeamId,
    hash: String,
    ends: Instant,
}

/// Why an upload failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the upload is larger than {0} bytes")]
    TooLarge(u64),
    #[error(transparent)]
    TeamFull(#[from] TeamFull),
    /// The client disconnected or sent an invalid body.
    #[error("the upload broke off")]
    BrokeOff(#[source] axum::Error),
    #[error("could not store the upload in {}", path.display())]
    Disk { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
}

const LINK_LIFE: Duration = Duration::from_secs(3600);
const MAX_LINKS: usize = 10_000;
const TEAM_LINKS: usize = 1000;

impl Uploads {
    pub(super) fn new(dir: PathBuf, limits: BuildLimits) -> Self {
        Self { dir, limits, ledger: Ledger::new(limits.team_uploads), links: Mutex::default() }
    }

    /// Removes partial files. No upload may be in progress.
    pub(super) fn clear_unfinished(&self) -> io::Result<()> {
        for part in [self.parts(), self.contexts()] {
            match std::fs::remove_dir_all(&part) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Creates a secret that permits one upload of this archive.
    pub(crate) fn new_link(&self, team: &TeamId, hash: &str) -> String {
        let now = Instant::now();
        let token = new_token().0;
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|_, link| link.ends > now);
        let is_own = |link: &Link| link.team == *team;
        let own = links.values().filter(|link| is_own(link)).count();
        if own >= TEAM_LINKS || links.len() >= MAX_LINKS {
            // Drop the link that expires first, preferably one of the team's own. Its owner can request another.
            let oldest = links.iter().min_by_key(|(_, link)| (own > 0 && !is_own(link), link.ends));
            let oldest = oldest.map(|(token, _)| token.clone());
            oldest.map(|token| links.remove(&token));
        }
        links.insert(token.clone(), Link { team: team.clone(), hash: hash.to_owned(), ends: now + LINK_LIFE });
        token
    }

    /// Returns what a link is for, and invalidates it.
    pub(crate) fn use_link(&self, token: &str) -> Option<(TeamId, String)> {
        let link = self.links.lock().unwrap_or_else(PoisonError::into_inner).remove(token)?;
        (link.ends > Instant::now()).then_some((link.team, link.hash))
    }

    /// Returns the path of an archive.
    pub(crate) fn archive(&self, team: &TeamId, hash: &str) -> PathBuf {
        self.dir.join("files").join(&team.0).join(hash)
    }

    /// Returns a path for a context that waits for its build. Each upload has its own.
    pub(crate) fn waiting_context(&self, build: &str) -> PathBuf {
        self.contexts().join(format!("{build}-{}", new_token().0))
    }

    /// Returns the path for the context of a build.
    pub(crate) fn context(&self, build: &str) -> PathBuf {
        self.contexts().join(build)
    }

    /// Receives an archive.
    pub(crate) async fn receive(
        &self,
        store: &Store,
        team: &TeamId,
        hash: &str,
        body: Body,
    ) -> Result<(), UploadError> {
        let held = self.hold(store, team).await?;
        let (part, size) = self.receive_part(body, &held).await?;
        let path = self.archive(team, hash);
        let kept = async {
            tokio::fs::create_dir_all(path.parent().unwrap_or(&self.dir)).await?;
            tokio::fs::rename(part.path(), &path).await
        };
        kept.await.map_err(disk(&path))?;
        store.record_template_file(team, hash, i64::try_from(size).unwrap_or(i64::MAX)).await?;
        held.keep();
        Ok(())
    }

    /// Opens a reservation in the team's quota.
    pub(crate) async fn hold(&self, store: &Store, team: &TeamId) -> Result<Reservation, StoreError> {
        self.ledger.open(store, team).await
    }

    /// Receives a body into a file that is removed when the guard is dropped. Bytes are taken from the reservation
    /// before they are written.
    pub(crate) async fn receive_part(&self, body: Body, held: &Reservation) -> Result<(Part, u64), UploadError> {
        let parts = self.parts();
        tokio::fs::create_dir_all(&parts).await.map_err(disk(&parts))?;
        let part = Part(parts.join(new_token().0));
        let size = write_body(&part.0, body.into_data_stream(), self.limits.upload, held).await?;
        Ok((part, size))
    }

    /// Removes archives that were not used for a long time.
    pub(super) async fn forget_old(
        &self,
        store: &Store,
        before: isopod_store::clock::Timestamp,
    ) -> Result<(), StoreError> {
        for (team, hash) in store.forget_template_files(before).await? {
            let path = self.archive(&team, &hash);
            if let Err(error) = tokio::fs::remove_file(&path).await {
                tracing::warn!(path = %path.display(), %error, "could not remove an old upload");
            }
        }
        Ok(())
    }

    fn parts(&self) -> PathBuf {
        self.dir.join("parts")
    }

    fn contexts(&self) -> PathBuf {
        self.dir.join("contexts")
    }
}

/// A file that is removed when this is dropped, unless it was renamed.
#[derive(Debug)]
pub(crate) struct Part(PathBuf);

impl Part {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn write_body(path: &Path, mut body: BodyDataStream, limit: u64, held: &Reservation) -> Result<u64, UploadError> {
    let mut file = tokio::fs::File::create_new(path).await.map_err(disk(path))?;
    let mut size = 0;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(UploadError::BrokeOff)?;
        size += chunk.len() as u64;
        if size > limit {
            return Err(UploadError::TooLarge(limit));
        }
        held.take(chunk.len() as u64)?;
        file.write_all(&chunk).await.map_err(disk(path))?;
    }
    file.flush().await.map_err(disk(path))?;
    file.sync_data().await.map_err(disk(path))?;
    Ok(size)
}

fn disk(path: &Path) -> impl FnOnce(io::Error) -> UploadError {
    let path = path.to_owned();
    move |source| UploadError::Disk { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uploads(dir: &Path, upload: u64) -> Uploads {
        Uploads::new(dir.to_owned(), BuildLimits { upload, ..BuildLimits::default() })
    }

    #[test]
    fn a_link_works_once() {
        let uploads = uploads(Path::new("/nowhere"), 1);
        let team = TeamId("t".to_owned());
        let token = uploads.new_link(&team, "abc");
        assert_eq!(uploads.use_link("other"), None);
        assert_eq!(uploads.use_link(&token), Some((team, "abc".to_owned())));
        assert_eq!(uploads.use_link(&token), None);
    }

    #[test]
    fn a_team_that_asks_for_many_links_loses_its_own() {
        let uploads = uploads(Path::new("/nowhere"), 1);
        let (team, other) = (TeamId("t".to_owned()), TeamId("other".to_owned()));
        let theirs = uploads.new_link(&other, "theirs");
        let first = uploads.new_link(&team, "first");
        for _ in 0..TEAM_LINKS {
            uploads.new_link(&team, "more");
        }
        assert_eq!(uploads.use_link(&first), None);
        assert_eq!(uploads.use_link(&theirs), Some((other, "theirs".to_owned())));
        assert_eq!(uploads.links.lock().unwrap().len(), TEAM_LINKS);
    }

    #[tokio::test]
    async fn what_is_too_large_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let uploads = uploads(dir.path(), 4);
        let store = Store::open(dir.path().join("isopod.db")).await.unwrap();
        let held = uploads.hold(&store, &TeamId("t".to_owned())).await.unwrap();
        let refused = uploads.receive_part(Body::from("12345"), &held).await;
        assert!(matches!(refused, Err(UploadError::TooLarge(4))));
        assert_eq!(std::fs::read_dir(dir.path().join("parts")).unwrap().count(), 0);
        let (part, size) = uploads.receive_part(Body::from("1234"), &held).await.unwrap();
        assert_eq!((size, std::fs::read_to_string(part.path()).unwrap().as_str()), (4, "1234"));
        drop(part);
        assert_eq!(std::fs::read_dir(dir.path().join("parts")).unwrap().count(), 0);
        uploads.clear_unfinished().unwrap();
        assert!(!dir.path().join("parts").exists());
    }
}
