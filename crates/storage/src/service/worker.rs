//! The daemon's process: takes over what its supervisor kept, and handles the requests of clients.
//!
//! There is one thread per client, because clients are few and each has one request. Before a client learns that a
//! mount is served, the supervisor has everything that the next daemon needs to take it over. Clients get their answers
//! at once. Other threads take over the mounts of an earlier daemon (`take_over`), watch the supervisor (`supervision`)
//! and end an unused daemon (`idle`).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use isopod_wire::error_chain;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tokio::runtime::Handle;

use super::abort::{Connections, abort};
use super::channel::Channel;
use super::idle::Usage;
use super::message::{
    BucketSettings, Collected, DEFAULT_IDLE_EXIT, FailureKind, MountStatus, Reply, Request, StorageSettings,
    StorageStatus, StoreSettings, ToSupervisor, VERSION,
};
use super::supervision::{Supervision, SupervisorProgram};
use crate::daemon::{Daemon, ServeError, View};
use crate::fuse::{self, Session};
use crate::object::local::DirectoryStore;
use crate::object::prefixed::Prefixed;
use crate::object::s3::{Credentials, S3Settings, S3Store};
use crate::object::{ObjectStore, StoreError};
use crate::subtree::Subtree;
use crate::vfs::{FsError, Quota, Settings};

/// How often to look for ended sessions and to check whether the daemon is still in use.
const TIDY_EVERY: Duration = Duration::from_millis(500);
/// How long the bucket may take to answer the first request.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);
/// The same for a bucket that has answered before and may be temporarily unavailable.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the bucket may take to show a directory to a new mount.
const SERVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause during a shortage of descriptors or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of names in one execution or volume. All of them are in the daemon's memory, which the sandboxes
/// of all teams share.
const MAX_FILES: u64 = 200_000;
/// The subdirectory for the journal and the local copies.
const FILES: &str = "vfs";
/// The file in it that says which store has answered before.
const KNOWN_STORE: &str = "store";

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("could not talk to the supervisor")]
    Supervisor(#[source] io::Error),
    #[error("could not take over the mounts of an earlier daemon: {0}")]
    TakeOver(String),
    #[error("could not accept clients")]
    Listen(#[source] io::Error),
}

#[derive(Debug)]
pub(super) struct Worker {
    /// The directory of the daemon, with the socket, the journal and the local copies.
    pub(super) directory: PathBuf,
    pub(super) listener: OwnedFd,
    pub(super) supervisor_program: SupervisorProgram,
    connections: Option<Connections>,
    pub(super) runtime: Handle,
    state: Mutex<State>,
}

/// The state under the lock. The supervisor is told of changes while the lock is held, so that a new supervisor misses
/// none.
#[derive(Debug)]
pub(super) struct State {
    pub(super) open: Option<Open>,
    pub(super) served: HashMap<String, Served>,
    next_name: u64,
    pub(super) supervision: Supervision,
    pub(super) usage: Usage,
    /// Whether the end was requested.
    pub(super) is_ending: bool,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) daemon: Arc<Daemon>,
    pub(super) settings: StorageSettings,
    /// For replacing its keys.
    bucket: Option<Arc<S3Store>>,
}

#[derive(Debug)]
pub(super) struct Served {
    /// `None` while the mount is being taken over from an earlier daemon.
    pub(super) session: Option<Session>,
    /// A copy for the next supervisor.
    pub(super) connection: OwnedFd,
    pub(super) mount: MountStatus,
    pub(super) aborter: Option<File>,
}

/// An error that is sent as [`Reply::Failed`].
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) kind: FailureKind,
    pub(super) message: String,
}

pub(super) type Answer = Result<Reply, Refusal>;

/// Serves clients on a listening socket until one of them ends the daemon, or until it is unused for long enough. Must
/// be called inside a Tokio runtime, and blocks. `supervisor_program` becomes another supervisor if ours dies.
pub fn run_worker(
    directory: &Path,
    listener: OwnedFd,
    supervisor: OwnedFd,
    supervisor_program: SupervisorProgram,
) -> Result<(), WorkerError> {
    let connections = Connections::open().inspect_err(|error| tracing::warn!(%error, "cannot abort FUSE connections"));
    let (supervision, inherited) = Supervision::receive(supervisor).map_err(WorkerError::Supervisor)?;
    let worker = Arc::new(Worker {
        directory: directory.to_owned(),
        listener,
        supervisor_program,
        connections: connections.ok(),
        runtime: Handle::current(),
        state: Mutex::new(State {
            open: None,
            served: HashMap::new(),
            next_name: 0,
            supervision,
            usage: Usage::default(),
            is_ending: false,
        }),
    });
    worker.inherit(inherited)?;
    let (tidy, watch) = (Arc::clone(&worker), Arc::clone(&worker));
    spawn("tidy", move || tidy.tidy_for_ever()).map_err(WorkerError::Listen)?;
    spawn("supervision", move || watch.watch_supervisor()).map_err(WorkerError::Listen)?;
    loop {
        let socket = match accept_with(&worker.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                // The shortage passes. If the daemon ended, every program that uses a mount would have to wait.
                tracing::warn!(%error, "could not accept a client yet; will retry");
                std::thread::sleep(SHORTAGE_PAUSE);
                continue;
            }
            Err(error) => return Err(WorkerError::Listen(error.into())),
        };
        let client = Arc::clone(&worker);
        if let Err(error) = spawn("client", move || client.converse(&Channel::new(socket))) {
            tracing::warn!(%error, "could not serve a client");
        }
    }
}

pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

impl Worker {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    fn converse(&self, channel: &Channel) {
        let mut attached = None;
        while let Ok((request, fds)) = channel.receive::<Request>() {
            let is_end = matches!(request, Request::Stop | Request::StopUnused);
            let _active = self.count_active(&request);
            let answer = match request {
                Request::Attach { who } => {
                    attached.get_or_insert_with(|| self.attach(who));
                    Ok(Reply::Done)
                }
                request => self.answer(request, fds),
            };
            let is_end = is_end && answer.is_ok();
            let reply = answer.unwrap_or_else(|refusal| {
                tracing::info!(message = refusal.message, "refused");
                Reply::Failed { kind: refusal.kind, message: refusal.message }
            });
            // The client may have closed the connection.
            let _ = channel.send(&reply, &[]);
            if is_end {
                self.leave();
            }
        }
    }

    /// Ends this process and its supervisor.
    pub(super) fn leave(&self) -> ! {
        let _ = self.state().supervision.send(&ToSupervisor::Bye, &[]);
        // Everything that matters is on disk. The threads of sessions have nothing left to do.
        std::process::exit(0);
    }

    fn answer(&self, request: Request, fds: Vec<OwnedFd>) -> Answer {
        match request {
            Request::Hello => {
                let store = self.state().open.as_ref().map(|open| open.settings.store.describe());
                Ok(Reply::Hello { version: VERSION, store })
            }
            Request::Attach { .. } => Err(Refusal::other("a client cannot attach with this request")),
            Request::Open(settings) => self.open(settings),
            Request::Keys(credentials) => self.set_keys(credentials),
            Request::Serve { owner, subtree, number, quota, again } => match fds.into_iter().next() {
                Some(fd) => {
                    let mount = MountStatus { owner: Some(owner), path: None, subtree: Some(subtree), quota };
                    self.begin(mount, fd, Some(number), again)
                }
                None => Err(Refusal::other("the request came without a connection")),
            },
            Request::Mount { path, subtree } => self.mount(path, subtree),
            Request::Unmount { path } => self.unmount(&path),
            Request::Status => Ok(Reply::Status(Box::new(self.status()))),
            Request::Settle => {
                let daemon = self.daemon()?;
                self.runtime.block_on(daemon.sync().settle());
                Ok(Reply::Done)
            }
            Request::SettleFor(timeout) => {
                if let Ok(daemon) = self.daemon() {
                    let settling = async { tokio::time::timeout(timeout, daemon.sync().settle()).await };
                    // What is not settled in time appears in the status.
                    let _ = self.runtime.block_on(settling);
                }
                Ok(Reply::Status(Box::new(self.status())))
            }
            Request::Collect => self.collect(),
            Request::Stop => {
                self.stop();
                Ok(Reply::Done)
            }
            Request::StopUnused => {
                self.check_unused()?;
                self.stop();
                Ok(Reply::Done)
            }
        }
    }

    pub(super) fn daemon(&self) -> Result<Arc<Daemon>, Refusal> {
        let not_open = || Refusal { kind: FailureKind::NotOpen, message: "no store is open".to_owned() };
        self.state().open.as_ref().map(|open| Arc::clone(&open.daemon)).ok_or_else(not_open)
    }

    fn open(&self, settings: StorageSettings) -> Answer {
        if let Some(open) = &self.state().open {
            let (is, wanted) = (open.settings.store.describe(), settings.store.describe());
            if is != wanted {
                let message = format!("{is} is already being served, not {wanted}");
                return Err(Refusal { kind: FailureKind::OtherStore, message });
            }
            return Ok(Reply::Done);
        }
        let open = self.open_store(settings)?;
        self.check(&open)?;
        let mut state = self.state();
        state.supervision.tell(&ToSupervisor::Settings(open.settings.clone()), &[]);
        state.open.get_or_insert(open);
        Ok(Reply::Done)
    }

    pub(super) fn open_store(&self, settings: StorageSettings) -> Result<Open, Refusal> {
        let (store, bucket) = match &settings.store {
            StoreSettings::Directory(path) => {
                let store: Arc<dyn ObjectStore> = Arc::new(DirectoryStore::open(path)?);
                (store, None)
            }
            StoreSettings::S3(bucket) => {
                let store = Arc::new(S3Store::new(s3_settings(bucket, settings.tunables.idle_handles))?);
                (with_prefix(store.clone(), &bucket.prefix), Some(store))
            }
        };
        let tunables = &settings.tunables;
        let vfs = Settings {
            ttl: tunables.ttl,
            dir_mode: tunables.dir_mode,
            file_mode: tunables.file_mode,
            cache_limit: tunables.cache_bytes,
            deadline: tunables.deadline,
            ..Settings::new(self.directory.join(FILES))
        };
        let _runtime = self.runtime.enter();
        let daemon = Daemon::start(store, vfs).map_err(|error| Refusal::chain(FailureKind::Other, &error))?;
        Ok(Open { daemon: Arc::new(daemon), settings, bucket })
    }

    /// A bucket that was never seen before must answer. One that has answered before is only temporarily unavailable,
    /// which is not fatal.
    fn check(&self, open: &Open) -> Result<(), Refusal> {
        let Some(bucket) = &open.bucket else { return Ok(()) };
        let file = self.directory.join(FILES).join(KNOWN_STORE);
        let name = open.settings.store.describe();
        let is_known = std::fs::read_to_string(&file).is_ok_and(|known| known == name);
        let timeout = if is_known { KNOWN_TIMEOUT } else { CHECK_TIMEOUT };
        let late = StoreError::Unreachable { what: "look at the bucket", reason: "it took too long".to_owned() };
        let checked = self.runtime.block_on(async { tokio::time::timeout(timeout, bucket.check()).await });
        match checked.unwrap_or(Err(late)) {
            Err(error) if is_known && error.is_temporary() => {
                tracing::warn!(%error, "the store is unavailable; calls that need it wait");
            }
            checked => {
                checked?;
                // Without this file, the next opening waits longer.
                let _ = std::fs::write(&file, name);
            }
        }
        Ok(())
    }

    fn set_keys(&self, credentials: Credentials) -> Answer {
        let mut state = self.state();
        let Some(open) = &mut state.open else { return Err(Refusal::other("no store is open")) };
        let (Some(bucket), StoreSettings::S3(settings)) = (&open.bucket, &mut open.settings.store) else {
            return Err(Refusal::other("a directory has no keys"));
        };
        bucket.set_credentials(credentials.clone());
        settings.keys = credentials.into();
        let settings = open.settings.clone();
        state.supervision.tell(&ToSupervisor::Settings(settings), &[]);
        Ok(Reply::Done)
    }

    fn mount(&self, path: PathBuf, subtree: Option<Subtree>) -> Answer {
        let same = |served: &Served| served.mount.path.as_ref() == Some(&path);
        if let Some(served) = self.state().served.values().find(|served| same(served)) {
            if served.mount.subtree == subtree {
                return Ok(Reply::Done);
            }
            return Err(Refusal::mount(format!("{} already shows another part of the workspace", path.display())));
        }
        self.daemon()?;
        let failed = |error: &fuse::MountError| Refusal::chain(FailureKind::Mount, error);
        remove_dead_mount(&path)?;
        let fd = fuse::mount(&path).map_err(|error| failed(&error))?;
        let number = device_number(&path);
        let mount = MountStatus { owner: None, path: Some(path.clone()), subtree, quota: None };
        self.begin(mount, fd, number, false).inspect_err(|_| {
            if let Err(error) = fuse::unmount(&path) {
                tracing::warn!(%error, "could not remove a mount that is not served");
            }
        })
    }

    /// Serves a connection, and lets the supervisor keep it.
    fn begin(&self, mount: MountStatus, fd: OwnedFd, number: Option<u32>, again: bool) -> Answer {
        let daemon = self.daemon()?;
        let aborter = match (&self.connections, number) {
            (Some(connections), Some(number)) => connections.aborter(number).ok(),
            _ => None,
        };
        let connection = fd.try_clone().map_err(|error| Refusal::other(error.to_string()))?;
        let view = view(&mount);
        let serving = async {
            match again {
                true => daemon.serve_again(fd, &view).await,
                false => daemon.serve(fd, &view).await,
            }
        };
        // The client keeps a sandbox waiting, so a timely refusal is better than a late success.
        let served = self.runtime.block_on(async { tokio::time::timeout(SERVE_TIMEOUT, serving).await });
        let session = served.unwrap_or(Err(ServeError::View(FsError::Deadline)))?;
        let served = Served { session: Some(session), connection, mount, aborter };
        let mut state = self.state();
        state.next_name += 1;
        let name = format!("{}-{}", std::process::id(), state.next_name);
        state.supervision.keep(&name, &served);
        state.served.insert(name, served);
        Ok(Reply::Done)
    }

    fn unmount(&self, path: &Path) -> Answer {
        let name = {
            let state = self.state();
            let mut found = state.served.iter().filter(|(_, served)| served.mount.path.as_deref() == Some(path));
            found.next().map(|(name, _)| name.clone())
        };
        let Some(name) = name else {
            return Err(Refusal::mount(format!("the workspace is not mounted on {}", path.display())));
        };
        fuse::unmount(path).map_err(|error| Refusal::chain(FailureKind::Mount, &error))?;
        self.end(&name);
        Ok(Reply::Done)
    }

    /// Ends a session, however busy it is.
    pub(super) fn end(&self, name: &str) {
        let served = {
            let mut state = self.state();
            let Some(served) = state.served.remove(name) else { return };
            state.supervision.tell(&ToSupervisor::Forget { name: name.to_owned() }, &[]);
            served
        };
        if let Some(aborter) = &served.aborter {
            abort(aborter);
        }
        if let Some(session) = served.session {
            session.stop();
        }
    }

    fn status(&self) -> StorageStatus {
        let state = self.state();
        let mut mounts: Vec<MountStatus> = state.served.values().map(|served| served.mount.clone()).collect();
        mounts.sort_by(|a, b| (&a.path, &a.owner, &a.subtree).cmp(&(&b.path, &b.owner, &b.subtree)));
        let open = state.open.as_ref();
        StorageStatus {
            pid: std::process::id(),
            supervisor: state.supervision.pid(),
            clients: state.usage.clients(),
            idle_exit: open.map_or(DEFAULT_IDLE_EXIT, |open| open.settings.tunables.idle_exit),
            store: open.map(|open| open.settings.store.describe()),
            mounts,
            sync: open.map(|open| open.daemon.vfs().sync_status()).unwrap_or_default(),
        }
    }

    fn collect(&self) -> Answer {
        let daemon = self.daemon()?;
        let bytes = daemon.vfs().drop_clean_copies();
        let bucket = self.state().open.as_ref().and_then(|open| open.bucket.clone());
        let uploads = match bucket {
            Some(bucket) => self.runtime.block_on(bucket.abort_stale_uploads())?,
            None => 0,
        };
        Ok(Reply::Collected(Collected { bytes, uploads }))
    }

    pub(super) fn stop(&self) {
        self.state().is_ending = true;
        let names: Vec<(String, Option<PathBuf>)> =
            self.state().served.iter().map(|(name, served)| (name.clone(), served.mount.path.clone())).collect();
        for (name, path) in names {
            if let Some(path) = path
                && let Err(error) = fuse::unmount(&path)
            {
                tracing::warn!(%error, "could not unmount; the mount stays");
            }
            self.end(&name);
        }
    }

    fn tidy_for_ever(&self) {
        loop {
            std::thread::sleep(TIDY_EVERY);
            self.tidy();
            self.leave_if_unused();
        }
    }

    /// Ends the sessions of mounts that were removed with their sandbox, or by someone else.
    pub(super) fn tidy(&self) {
        let is_over = |served: &Served| served.session.as_ref().is_some_and(|session| !session.is_alive());
        let ended: Vec<String> = {
            let state = self.state();
            state.served.iter().filter(|(_, served)| is_over(served)).map(|(name, _)| name.clone()).collect()
        };
        ended.iter().for_each(|name| self.end(name));
    }
}

pub(super) fn view(mount: &MountStatus) -> View {
    View { subtree: mount.subtree.clone(), quota: Quota { bytes: mount.quota, files: Some(MAX_FILES) } }
}

fn s3_settings(bucket: &BucketSettings, idle_handles: usize) -> S3Settings {
    let mut settings = S3Settings::new(&bucket.bucket, &bucket.region, bucket.keys.clone());
    settings.endpoint.clone_from(&bucket.endpoint);
    settings.idle_connections = idle_handles;
    settings
}

fn with_prefix(store: Arc<S3Store>, prefix: &str) -> Arc<dyn ObjectStore> {
    if prefix.is_empty() { store } else { Arc::new(Prefixed::new(store, prefix)) }
}

/// Removes a mount that a dead daemon left. Leaves other mounts alone.
fn remove_dead_mount(path: &Path) -> Result<(), Refusal> {
    match mount_line(path) {
        Some(line) if line.contains(" - fuse.isopod ") => {
            fuse::unmount(path).map_err(|error| Refusal::chain(FailureKind::Mount, &error))
        }
        Some(_) => Err(Refusal::mount(format!("another file system is mounted on {}", path.display()))),
        None => Ok(()),
    }
}

/// Uses the list of mounts. Accessing the mount itself would wait for its daemon, which is us.
fn device_number(path: &Path) -> Option<u32> {
    mount_line(path)?.split(' ').nth(2)?.strip_prefix("0:")?.parse().ok()
}

/// The kernel's line about the topmost mount on a path.
fn mount_line(path: &Path) -> Option<String> {
    let shown =
        path.to_str()?.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(shown.as_str())).map(str::to_owned)
}

impl Refusal {
    pub(super) fn other(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Other, message: message.into() }
    }

    fn mount(message: String) -> Self {
        Self { kind: FailureKind::Mount, message }
    }

    fn chain(kind: FailureKind, error: &dyn std::error::Error) -> Self {
        Self { kind, message: error_chain(error) }
    }
}

impl From<ServeError> for Refusal {
    fn from(error: ServeError) -> Self {
        let kind = match &error {
            ServeError::View(FsError::Store(error)) => FailureKind::from(error),
            ServeError::View(FsError::Deadline) => FailureKind::Unreachable,
            _ => FailureKind::Other,
        };
        Self::chain(kind, &error)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::chain(FailureKind::from(&error), &error)
    }
}
