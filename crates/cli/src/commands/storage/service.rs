//! The daemon behind the server: started when it is first needed, for the node's mounts and the API's files.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_control::{EnsureWorkspace, Workspace, WorkspaceError};
use isopod_node::WorkspaceServer;
use isopod_storage::{ClientError, DaemonProgram, StorageClient, StorageSettings};

use super::choice::{Choice, directory};
use crate::env_names;

/// How long a daemon that answered is believed to be there.
const BELIEVED: Duration = Duration::from_secs(1);

/// A daemon of this state directory.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: StorageClient,
    program: DaemonProgram,
    settings: StorageSettings,
    /// Bytes that a sandbox may have in what it is shown.
    quota: Option<u64>,
    /// When it was last seen to be there.
    seen: Mutex<Option<Instant>>,
}

impl Storage {
    pub(crate) fn new(state_dir: &Path, choice: &Choice, quota: Option<u64>) -> Self {
        let client = StorageClient::new(directory(state_dir));
        let (program, settings) = (program(state_dir), choice.settings.clone());
        Self { shared: Arc::new(Shared { client, program, settings, quota, seen: Mutex::new(None) }) }
    }

    pub(crate) fn client(&self) -> &StorageClient {
        &self.shared.client
    }

    /// Makes sure that the daemon runs and shows the whole bucket to us.
    pub(crate) fn ensure(&self) -> Result<(), ClientError> {
        let shared = &self.shared;
        let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_some_and(|seen| seen.elapsed() < BELIEVED) {
            return Ok(());
        }
        if seen.is_none() || !shared.client.is_running() {
            shared.client.ensure(&shared.program, &shared.settings)?;
            shared.client.ensure_root()?;
        }
        *seen = Some(Instant::now());
        Ok(())
    }

    /// What the API works on.
    pub(crate) fn workspace(&self, choice: &Choice) -> Workspace {
        Workspace::new(self.client().root())
            .at(&choice.base_path)
            .by_metadata(choice.is_asked_for)
            .started_by(Arc::new(self.clone()))
    }
}

impl EnsureWorkspace for Storage {
    fn ensure(&self) -> Pin<Box<dyn Future<Output = Result<(), WorkspaceError>> + Send + '_>> {
        let storage = self.clone();
        Box::pin(async move {
            let ensured = tokio::task::spawn_blocking(move || Self::ensure(&storage)).await;
            let failed = |error: &dyn std::error::Error| WorkspaceError { reason: chain(error) };
            ensured.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
        })
    }
}

impl WorkspaceServer for Storage {
    fn serve(&self, owner: &str, subtree: &str, connection: OwnedFd, number: u32) -> io::Result<()> {
        let subtree = subtree.parse().map_err(io::Error::other)?;
        self.ensure().map_err(io::Error::other)?;
        self.client().serve(owner, subtree, &connection, number, self.shared.quota).map_err(io::Error::other)
    }

    fn serves(&self, owner: &str) -> bool {
        let status = self.client().status();
        status.is_ok_and(|status| status.mounts.iter().any(|mount| mount.owner.as_deref() == Some(owner)))
    }
}

/// This program, as the keeper of a daemon.
fn program(state_dir: &Path) -> DaemonProgram {
    let variable = |name: &&str| Some(((*name).into(), std::env::var_os(name)?));
    DaemonProgram {
        program: "/proc/self/exe".into(),
        arguments: vec!["__storaged".into(), directory(state_dir).into()],
        // Whom to trust for https, and how much to log. Keys go another way.
        environment: [env_names::SSL_CERT_FILE, "SSL_CERT_DIR", env_names::LOG].iter().filter_map(variable).collect(),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
