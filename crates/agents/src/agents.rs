//! The state that requests of agents use, and the tasks behind it.

use std::sync::Arc;
use std::time::Duration;

use isopod_control::lifecycle::Fleet;
use isopod_control::templates::Catalogue;
use isopod_control::{App, ServeConfig};
use isopod_files::FileStore;
use isopod_files::workspace::Workspace;
use isopod_outbound::Trust;
use isopod_store::StoreError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::AgentsConfig;
use crate::runs::{Runs, open_runs};
use crate::sessions::{Sessions, run_session_sweep};

/// Shared by all requests.
#[derive(Debug)]
pub struct Agents {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) workspace: Option<Workspace>,
    pub(crate) files: Option<Arc<FileStore>>,
    /// The domain of sandbox host names, as shown to clients.
    pub(crate) domain_text: String,
}

/// Why the features for agents cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Sessions cannot be opened.
    #[error("could not open the sessions")]
    Sessions(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The runs of an earlier server could not be taken over.
    #[error("could not take over the existing runs")]
    Runs(#[source] StoreError),
}

impl Agents {
    /// Takes over the sessions and runs of an earlier server. Spawns tasks in `background` that end when `stop` is
    /// cancelled.
    ///
    /// # Errors If Redis is unreachable or the store fails.
    pub async fn open(
        config: &AgentsConfig,
        serve: &ServeConfig,
        app: &App,
        stop: &CancellationToken,
        background: &mut JoinSet<()>,
    ) -> Result<Arc<Self>, OpenError> {
        let (fleet, catalogue) = (Arc::clone(&app.fleet), Arc::clone(&app.catalogue));
        let trust = Trust::new(serve.webhook_authorities.clone());
        let sessions = Sessions::open(Arc::clone(&fleet), Arc::clone(&catalogue), config.sessions.clone(), trust);
        let sessions = sessions.await.map_err(|error| OpenError::Sessions(error.into()))?;
        background.spawn(run_session_sweep(Arc::clone(&sessions), serve.recheck_every));
        let runs = open_runs(&config.runs, serve, &sessions, stop, background).await.map_err(OpenError::Runs)?;
        Ok(Arc::new(Self {
            fleet,
            catalogue,
            sessions,
            runs,
            workspace: app.workspace.clone(),
            files: app.files.clone(),
            domain_text: app.domain().to_owned(),
        }))
    }

    /// Waits until ended runs are cleaned up, for at most `timeout`. For a server that is about to stop. The next
    /// server cleans up what is left.
    pub async fn finish_cleanups(&self, timeout: Duration) {
        self.runs.finish_cleanups(timeout).await;
    }

    /// Waits for the tasks of all runs, which end when the server stops.
    pub async fn drain(&self) {
        self.runs.drain().await;
    }
}
