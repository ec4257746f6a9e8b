//! The daemon behind the server: started when it is first needed, for the node's mounts and the API's files.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_files::workspace::{EnsureWorkspace, Workspace, WorkspaceError};
use isopod_node::{MountedPart, ServedPart, WorkspaceServer, WorkspaceUnavailable};
use isopod_storage::{ClientError, DaemonProgram, FailureKind, MountStatus, NewMount, StorageClient, StorageSettings};
use isopod_wire::error_chain;

use super::choice::{Choice, directory};
use crate::env_names;

/// How long a daemon that answered is believed to be there.
const BELIEVED: Duration = Duration::from_secs(1);
/// How often a server looks for a daemon that it could be attached to.
const ATTACH_EVERY: Duration = Duration::from_millis(500);

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
    /// How the last look at it went. Held by whoever looks.
    seen: Mutex<Option<Seen>>,
}

#[derive(Clone, Debug)]
struct Seen {
    when: Instant,
    /// Why it was unavailable. Callers that waited for the first attempt get this, instead of waiting as long themselves.
    trouble: Option<(FailureKind, String)>,
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
        let asked = Instant::now();
        let mut seen = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Seen { when, trouble }) = &*seen
            && (*when > asked || (trouble.is_none() && when.elapsed() < BELIEVED))
        {
            return match trouble.clone() {
                None => Ok(()),
                Some((kind, message)) => Err(ClientError::Refused { kind, message }),
            };
        }
        let was_there = seen.as_ref().is_some_and(|seen| seen.trouble.is_none());
        let looked = self.look(was_there);
        let trouble = looked.as_ref().err().map(|error| match error {
            ClientError::Refused { kind, message } => (*kind, message.clone()),
            other => (FailureKind::Other, error_chain(other)),
        });
        *seen = Some(Seen { when: Instant::now(), trouble });
        looked
    }

    /// The next look is a thorough one.
    fn forget(&self) {
        *self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn look(&self, was_there: bool) -> Result<(), ClientError> {
        let Shared { client, program, settings, .. } = &*self.shared;
        if was_there && client.is_running() {
            return Ok(());
        }
        client.ensure(program, settings)?;
        client.ensure_root()
    }

    /// Ends the daemon that a server of another version left. Ours takes its place when it is needed, and sandboxes that
    /// had mounts get them again. Only for the server that has the state directory.
    pub(crate) fn replace_other_version(&self) -> Result<(), ClientError> {
        if self.client().stop_other_version()? {
            tracing::info!("ended the storage daemon of another version");
            self.forget();
        }
        Ok(())
    }

    /// Tells the daemon that this server uses it, for as long as the process lives and whenever there is a daemon.
    pub(crate) fn keep_attached(&self) -> io::Result<()> {
        let client = self.client().clone();
        let who = format!("the server (process {})", std::process::id());
        std::thread::Builder::new().name("storage-attached".to_owned()).spawn(move || {
            loop {
                match client.attach(&who) {
                    Ok(attachment) => attachment.wait(),
                    // None runs, or one of another version that knows nothing of this.
                    Err(_) => std::thread::sleep(ATTACH_EVERY),
                }
            }
        })?;
        Ok(())
    }

    /// What the API works on.
    pub(crate) fn workspace(&self, choice: &Choice) -> Workspace {
        Workspace::new(self.client().root())
            .at(&choice.base_path)
            .in_bucket(choice.bucket().map(str::to_owned))
            .by_metadata(choice.is_asked_for)
            .started_by(Arc::new(self.clone()))
    }
}

impl EnsureWorkspace for Storage {
    fn ensure(&self) -> Pin<Box<dyn Future<Output = Result<(), WorkspaceError>> + Send + '_>> {
        let storage = self.clone();
        Box::pin(async move {
            let ensured = tokio::task::spawn_blocking(move || Self::ensure(&storage)).await;
            let failed = |error: &dyn std::error::Error| WorkspaceError { reason: error_chain(error) };
            ensured.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
        })
    }
}

impl WorkspaceServer for Storage {
    fn serve(&self, mount: &MountedPart<'_>, connection: OwnedFd) -> Result<(), WorkspaceUnavailable> {
        let failed = |reason: &str, source: Box<dyn std::error::Error + Send + Sync>| WorkspaceUnavailable {
            reason: reason.to_owned(),
            source,
        };
        let subtree = mount.subtree.parse().map_err(|error| failed("it has no such part", Box::new(error)))?;
        let MountedPart { owner, number, again, .. } = *mount;
        let new = NewMount { owner, subtree, number, quota: self.shared.quota, again };
        let serve = || self.ensure().and_then(|()| self.client().serve(&new, &connection));
        let served = match serve() {
            // Not the daemon that we knew: it is gone, or another one is there and nobody has told it of the store.
            Err(ClientError::NotRunning | ClientError::Refused { kind: FailureKind::NotOpen, .. }) => {
                self.forget();
                serve()
            }
            served => served,
        };
        served.map_err(|error| failed(reason(&error), Box::new(error)))
    }

    fn served(&self) -> io::Result<Vec<ServedPart>> {
        let status = match self.client().status() {
            Ok(status) => status,
            // Nobody serves anything, and that is certain.
            Err(ClientError::NotRunning) => return Ok(Vec::new()),
            Err(error) => return Err(io::Error::other(error_chain(&error))),
        };
        let part = |mount: MountStatus| Some(ServedPart { owner: mount.owner?, subtree: mount.subtree?.to_string() });
        Ok(status.mounts.into_iter().filter_map(part).collect())
    }
}

/// Why the workspace is away, for clients of the API: where the bucket is and what it said is not for them.
fn reason(error: &ClientError) -> &'static str {
    match error {
        ClientError::Refused { kind: FailureKind::Unreachable, .. } => "its store cannot be reached",
        ClientError::Refused { kind: FailureKind::Denied, .. } => "its store refuses the server's keys",
        ClientError::Refused { kind: FailureKind::NoBucket, .. } => "its bucket does not exist",
        ClientError::Refused { kind: FailureKind::WrongRegion, .. } => "its bucket is in another region",
        ClientError::Refused { .. } => "its storage daemon refused; the server's log says why",
        ClientError::NotRunning | ClientError::Start(_) => "its storage daemon cannot be started",
        ClientError::Talk(_) => "its storage daemon does not answer",
        ClientError::Version => "its storage daemon is of another version",
    }
}

/// This program, as the supervisor of a daemon.
fn program(state_dir: &Path) -> DaemonProgram {
    let variable = |name: &&str| Some(((*name).into(), std::env::var_os(name)?));
    DaemonProgram {
        program: "/proc/self/exe".into(),
        arguments: vec!["__storaged".into(), directory(state_dir).into()],
        // Whom to trust for https, and how much to log. Keys go another way.
        environment: [env_names::SSL_CERT_FILE, "SSL_CERT_DIR", env_names::LOG].iter().filter_map(variable).collect(),
    }
}
