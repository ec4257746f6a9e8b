//! What is kept of a session on disk, so that the next server finds it: a file per session, named by the hash of its id.
//!
//! A record has no secrets: neither the id nor credentials. It is written again from time to time while its session lives,
//! so that its age says how long the session has had no server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use isopod_wire::error_chain;
use rmcp::model::InitializeRequestParams;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::fs;
use tokio::sync::Mutex;

use super::options::Options;
use crate::sandboxes::{Inventory, Notebook};

#[derive(Debug)]
pub(super) struct Records {
    directory: Option<PathBuf>,
}

/// The record of one session.
#[derive(Debug)]
pub(super) struct Record {
    directory: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Known when the session has an id.
    file: Option<PathBuf>,
    saved: Saved,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    owner: String,
    pub(super) options: Options,
    /// What the client said of itself. Missing if it uses no session.
    pub(super) initialize: Option<InitializeRequestParams>,
    pub(super) inventory: Inventory,
}

impl Records {
    /// The directory is made with the first record.
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self { directory }
    }

    pub(super) fn new_record(&self, owner: &str, options: Options) -> Arc<Record> {
        let owner = owner.to_owned();
        self.record(None, Saved { owner, options, initialize: None, inventory: Inventory::default() })
    }

    /// The record of a session of this owner.
    pub(super) async fn find(&self, id: &str, owner: &str, max_age: Duration) -> Option<(Arc<Record>, Saved)> {
        let file = file_of(self.directory.as_deref()?, id);
        if age(&file).await? > max_age {
            remove(&file).await;
            return None;
        }
        let text = fs::read(&file).await.ok()?;
        let saved: Saved = match serde_json::from_slice(&text) {
            Ok(saved) => saved,
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "could not read the record of an MCP session");
                return None;
            }
        };
        (saved.owner == owner).then(|| (self.record(Some(file), saved.clone()), saved))
    }

    /// Removes what no client comes back to.
    pub(super) async fn prune(&self, max_age: Duration) {
        let Some(directory) = &self.directory else { return };
        let Ok(mut entries) = fs::read_dir(directory).await else { return };
        while let Ok(Some(entry)) = entries.next_entry().await {
            if age(&entry.path()).await.is_some_and(|age| age > max_age) {
                remove(&entry.path()).await;
            }
        }
    }

    fn record(&self, file: Option<PathBuf>, saved: Saved) -> Arc<Record> {
        Arc::new(Record { directory: self.directory.clone(), state: Mutex::new(State { file, saved }) })
    }
}

impl Record {
    /// The session has an id now.
    pub(super) async fn begin(&self, id: &str, initialize: Option<InitializeRequestParams>) {
        let mut state = self.state.lock().await;
        state.file = self.directory.as_deref().map(|directory| file_of(directory, id));
        state.saved.initialize = initialize;
        state.write().await;
    }

    pub(super) async fn remove(&self) {
        if let Some(file) = self.state.lock().await.file.take() {
            remove(&file).await;
        }
    }
}

#[async_trait]
impl Notebook for Record {
    async fn note(&self, inventory: Inventory) {
        let mut state = self.state.lock().await;
        state.saved.inventory = inventory;
        state.write().await;
    }
}

impl State {
    /// A session that can't be recorded works on, until the server restarts.
    async fn write(&self) {
        let Some(file) = &self.file else { return };
        if let Err(error) = self.try_write(file).await {
            tracing::warn!(file = %file.display(), error = error_chain(&error), "could not record an MCP session");
        }
    }

    async fn try_write(&self, file: &Path) -> std::io::Result<()> {
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory).await?;
        }
        let part = file.with_extension("part");
        fs::write(&part, serde_json::to_vec(&self.saved)?).await?;
        fs::rename(&part, file).await
    }
}

fn file_of(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{}.json", hex::encode(Sha256::digest(id))))
}

async fn age(file: &Path) -> Option<Duration> {
    let modified = fs::metadata(file).await.ok()?.modified().ok()?;
    Some(SystemTime::now().duration_since(modified).unwrap_or_default())
}

async fn remove(file: &Path) {
    if let Err(error) = fs::remove_file(file).await {
        tracing::debug!(file = %file.display(), %error, "the record of an MCP session was gone already");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_record_is_found_by_its_owner_until_it_is_old_or_removed() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::new(Some(directory.path().join("mcp")));
        let record = records.new_record("team/key:1", Options { session: Some("s".to_owned()), ..Options::default() });
        record.note(Inventory::default()).await;
        assert!(records.find("id", "team/key:1", LONG).await.is_none(), "it has no id yet");
        record.begin("id", None).await;
        let inventory = Inventory { own: Some("i1".parse().unwrap()), ..Inventory::default() };
        record.note(inventory.clone()).await;
        let (_, saved) = records.find("id", "team/key:1", LONG).await.unwrap();
        assert_eq!((saved.inventory, saved.options.session.as_deref()), (inventory, Some("s")));
        assert!(records.find("id", "team/key:2", LONG).await.is_none(), "it is somebody else's");
        assert!(records.find("../id", "team/key:1", LONG).await.is_none());
        let names: Vec<_> = std::fs::read_dir(directory.path().join("mcp")).unwrap().collect();
        assert_eq!(names.len(), 1);
        records.prune(LONG).await;
        assert!(records.find("id", "team/key:1", LONG).await.is_some());
        record.remove().await;
        record.note(Inventory::default()).await;
        assert_eq!(std::fs::read_dir(directory.path().join("mcp")).unwrap().count(), 0);
        record.begin("id", None).await;
        assert!(records.find("id", "team/key:1", Duration::ZERO).await.is_none());
        assert_eq!(std::fs::read_dir(directory.path().join("mcp")).unwrap().count(), 0);
    }
}
