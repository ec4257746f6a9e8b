//! The server that uses a state directory, for verbs that look for it. What a server that was killed left behind is found
//! out when it is asked.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use isopod_node::StateRoot;
use serde::{Deserialize, Serialize};

use super::ENV_DIRECTORY;

const FILE: &str = "server.json";

/// How to reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunningServer {
    pub(super) api_url: String,
}

/// Takes the record back when it is dropped.
#[derive(Debug)]
pub(super) struct Recorded(PathBuf);

impl RunningServer {
    /// Of this state directory. None where nothing is recorded, or we may not look.
    pub(super) fn of(state_dir: &Path) -> Option<Self> {
        let text = fs::read(state_dir.join(ENV_DIRECTORY).join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn record(&self, state: &StateRoot) -> anyhow::Result<Recorded> {
        let directory = state.path().join(ENV_DIRECTORY);
        let path = directory.join(FILE);
        fs::create_dir_all(&directory)
            .and_then(|()| fs::write(&path, serde_json::to_vec(self)?))
            .with_context(|| format!("could not write {}", path.display()))?;
        Ok(Recorded(path))
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, "the record of this server is gone already");
        }
    }
}
