//! Promotion: copies an artifact of a run into the library of a client, where it is kept for a while.
//!
//! Promoted files have a directory of their own, beside the one for uploads: one that expires never takes a file with it
//! that somebody put there to stay. A row is written before its file appears and deleted after the file is gone, so after
//! a crash the next sweep finishes what was begun.

use std::fs::File;
use std::io;
use std::sync::Arc;

use isopod_files::FileSink as _;
use isopod_store::clock::Timestamp;
use isopod_store::{ArtifactInfo, ExpiredPromotion, FileFacts, Owner, Promotion, StoreError, TeamId};

use super::files::on_host;
use super::workspace::{HostTree, NewHostFile, RelPath, content_type};
use super::{FileError, SessionError, Sessions};

impl Sessions {
    /// Copies an artifact into the client's library. Replaces one that was promoted under the same name.
    pub(crate) async fn promote(
        &self,
        team: &TeamId,
        run: &Owner,
        client: &str,
        path: &RelPath,
    ) -> Result<Promotion, FileError> {
        let tree = self.find_artifact(team, run, path).await?;
        let wanted = path.clone();
        let (source, facts) = on_host("read", path.as_str(), move || tree.read(&wanted)).await?;
        let artifact = self.describe(team, run, path, &facts).await?;
        let promoted_at = Timestamp::now();
        let expires_at = promoted_at.plus(self.settings.keep_promoted);
        let (client, run) = (client.to_owned(), run.id().to_owned());
        let promotion = Promotion { client, run, artifact, promoted_at, expires_at };

        let copied = self.copy_unfinished(team, &promotion.client, path, source).await?;
        let alone = Arc::clone(&self.promoting).lock_owned().await;
        self.store.save_promotion(team, &promotion).await.map_err(SessionError::from)?;
        let shown = path.as_str();
        let finish = move || {
            // The file gets its name even if the client has hung up. Nobody may forget the row in between.
            let _alone = alone;
            Ok(copied.finish().is_ok())
        };
        let finished = on_host("write", shown, finish).await?;
        if finished { Ok(promotion) } else { Err(FileError::InTheWay(shown.to_owned())) }
    }

    /// Removes a promoted file. Returns whether there was one.
    pub(crate) async fn unpromote(&self, team: &TeamId, client: &str, path: &RelPath) -> Result<bool, SessionError> {
        let _alone = self.promoting.lock().await;
        let was_there = self.remove_promoted_file(team, client, path).await?;
        self.store.forget_promotion(team, client, path.as_str()).await?;
        Ok(was_there)
    }

    /// Removes promoted files whose time is up. A file that cannot be removed keeps its row, and is tried again.
    pub(super) async fn remove_expired_promotions(&self) -> Result<(), StoreError> {
        // Nothing is promoted again between the look at its row and its removal.
        let _alone = self.promoting.lock().await;
        let now = Timestamp::now();
        for expired in self.store.expired_promotions(now).await? {
            // Servers with a common directory write the same file. The last row to expire takes it away.
            let is_needed = self.directories.is_shared() && self.store.is_promoted_elsewhere(&expired, now).await?;
            let ExpiredPromotion { team, client, filename } = expired;
            if let (false, Ok(path)) = (is_needed, RelPath::parse(&filename))
                && let Err(error) = self.remove_promoted_file(&team, &client, &path).await
            {
                let error = isopod_wire::error_chain(&error);
                tracing::warn!(
                    team = team.0,
                    client,
                    filename,
                    error,
                    "could not remove an expired file of a library yet"
                );
                continue;
            }
            self.store.forget_promotion(&team, &client, &filename).await?;
        }
        Ok(())
    }

    async fn describe(
        &self,
        team: &TeamId,
        run: &Owner,
        path: &RelPath,
        facts: &FileFacts,
    ) -> Result<ArtifactInfo, SessionError> {
        let recorded = self.store.artifact_of(team, run.id(), path.as_str()).await?;
        // A file that others put into a shared directory has no record.
        let artifact = recorded.unwrap_or_else(|| ArtifactInfo {
            filename: path.as_str().to_owned(),
            agent_id: None,
            generated_at: Timestamp(facts.modified.div_euclid(1_000_000)),
            size_bytes: facts.size,
            content_type: content_type(path.as_str()).to_owned(),
        });
        Ok(ArtifactInfo { size_bytes: facts.size, ..artifact })
    }

    /// Copies a file into the directory of promoted files, where it does not have its name yet.
    async fn copy_unfinished(
        &self,
        team: &TeamId,
        client: &str,
        path: &RelPath,
        source: File,
    ) -> Result<NewHostFile, FileError> {
        let (place, target) = (self.directories.promoted(team, client), path.clone());
        let copied = on_host("copy", path.as_str(), move || {
            let tree = HostTree::ensure(&place)?;
            Ok(tree.begin_from(&target, source).ok())
        });
        copied.await?.ok_or_else(|| FileError::InTheWay(path.as_str().to_owned()))
    }

    async fn remove_promoted_file(&self, team: &TeamId, client: &str, path: &RelPath) -> Result<bool, SessionError> {
        let (place, target) = (self.directories.promoted(team, client), path.clone());
        on_host("remove", path.as_str(), move || match HostTree::open(&place) {
            Ok(tree) => remove_with_empty_parents(&tree, &target),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        })
        .await
    }
}

/// Returns whether there was such a file. Nothing but a regular file was ever promoted.
fn remove_with_empty_parents(tree: &HostTree, path: &RelPath) -> io::Result<bool> {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound};
    match tree.facts(path) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | IsADirectory | InvalidInput) => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    let was_there = tree.remove(path)?;
    tree.remove_empty_parents(path);
    Ok(was_there)
}
