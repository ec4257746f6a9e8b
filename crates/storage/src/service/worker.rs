//! The daemon's own process: takes over what its keeper kept, and does what clients ask for.
//!
//! A thread per client, because clients are few and each asks for one thing. What a mount needs to be taken over is with the
//! keeper before a client is told that it is served.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::net::{SocketFlags, accept_with};
use tokio::runtime::Handle;

use super::abort::{Connections, abort};
use super::channel::Channel;
use super::message::{
    BucketSettings, Collected, FailureKind, Inheritance, KeptMount, MountStatus, Reply, Request, StorageSettings,
    StorageStatus, StoreSettings, ToKeeper, VERSION,
};
use crate::daemon::{Daemon, View};
use crate::fuse::{self, Session};
use crate::object::local::DirectoryStore;
use crate::object::prefixed::Prefixed;
use crate::object::s3::{Credentials, S3Settings, S3Store};
use crate::object::{ObjectStore, StoreError};
use crate::subtree::Subtree;
use crate::vfs::{Quota, Settings};

/// How often ended sessions are looked for.
const TIDY_EVERY: Duration = Duration::from_millis(500);
/// How long the bucket may take to answer the first question.
const CHECK_PATIENCE: Duration = Duration::from_secs(15);

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("could not talk to the keeper")]
    Keeper(#[source] io::Error),
    #[error("could not go on with what an earlier daemon served: {0}")]
    TakeOver(String),
    #[error("could not wait for clients")]
    Listen(#[source] io::Error),
}

#[derive(Debug)]
struct Worker {
    /// The journal and the local copies.
    directory: PathBuf,
    keeper: Channel,
    connections: Option<Connections>,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: Option<Open>,
    served: HashMap<String, Served>,
    next_name: u64,
}

#[derive(Debug)]
struct Open {
    daemon: Arc<Daemon>,
    settings: StorageSettings,
    /// To give it other keys.
    bucket: Option<Arc<S3Store>>,
}

#[derive(Debug)]
struct Served {
    session: Session,
    mount: MountStatus,
    aborter: Option<File>,
}

/// What goes back as [`Reply::Failed`].
#[derive(Debug)]
struct Refusal {
    kind: FailureKind,
    message: String,
}

type Answer = Result<Reply, Refusal>;

/// Serves clients on a listening socket until one of them ends it. Must be called inside a runtime, and blocks.
pub fn run_worker(directory: &Path, listener: &OwnedFd, keeper: OwnedFd) -> Result<(), WorkerError> {
    let connections = Connections::open().inspect_err(|error| tracing::warn!(%error, "connections cannot be aborted"));
    let worker = Arc::new(Worker {
        directory: directory.to_owned(),
        keeper: Channel::new(keeper),
        connections: connections.ok(),
        runtime: Handle::current(),
        state: Mutex::default(),
    });
    worker.inherit()?;
    let tidy = Arc::clone(&worker);
    spawn("tidy", move || tidy.tidy_for_ever()).map_err(WorkerError::Listen)?;
    loop {
        let socket = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
            Err(error) => return Err(WorkerError::Listen(error.into())),
        };
        let client = Arc::clone(&worker);
        spawn("client", move || client.converse(&Channel::new(socket))).map_err(WorkerError::Listen)?;
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

impl Worker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// Takes over what an earlier daemon served.
    fn inherit(&self) -> Result<(), WorkerError> {
        let (Inheritance { settings, mounts }, _) = self.keeper.receive().map_err(WorkerError::Keeper)?;
        let mut kept = Vec::new();
        for _ in 0..mounts {
            kept.push(self.keeper.receive::<KeptMount>().map_err(WorkerError::Keeper)?);
        }
        let Some(settings) = settings else { return Ok(()) };
        let open = self.open_store(settings).map_err(|refusal| WorkerError::TakeOver(refusal.message))?;
        let daemon = Arc::clone(&open.daemon);
        self.state().open = Some(open);
        for (KeptMount { name, mount }, fds) in kept {
            let mut fds = fds.into_iter();
            let Some(fd) = fds.next() else { continue };
            let aborter = fds.next().map(File::from);
            // One that went away meanwhile is no reason to leave the others alone.
            match self.runtime.block_on(daemon.take_over(fd, &view(&mount))) {
                Ok(session) => drop(self.state().served.insert(name, Served { session, mount, aborter })),
                Err(error) => {
                    tracing::warn!(%error, name, "a mount could not be taken over");
                    let _ = self.keeper.send(&ToKeeper::Forget { name }, &[]);
                }
            }
        }
        Ok(())
    }

    fn converse(&self, channel: &Channel) {
        while let Ok((request, fds)) = channel.receive::<Request>() {
            let is_end = matches!(request, Request::Stop);
            let reply = self.answer(request, fds).unwrap_or_else(|refusal| {
                tracing::info!(message = refusal.message, "refused");
                Reply::Failed { kind: refusal.kind, message: refusal.message }
            });
            // A client that is gone has changed its mind.
            let _ = channel.send(&reply, &[]);
            if is_end {
                let _ = self.keeper.send(&ToKeeper::Bye, &[]);
                // Everything that counts is on disk; threads of sessions have nothing to say any more.
                std::process::exit(0);
            }
        }
    }

    fn answer(&self, request: Request, fds: Vec<OwnedFd>) -> Answer {
        match request {
            Request::Hello => {
                let store = self.state().open.as_ref().map(|open| open.settings.store.describe());
                Ok(Reply::Hello { version: VERSION, store })
            }
            Request::Open(settings) => self.open(settings),
            Request::Keys(credentials) => self.set_keys(credentials),
            Request::Serve { owner, subtree, number, quota } => match fds.into_iter().next() {
                Some(fd) => {
                    let mount = MountStatus { owner: Some(owner), path: None, subtree: Some(subtree), quota };
                    self.begin(mount, fd, Some(number))
                }
                None => Err(Refusal::other("there is no connection with the request")),
            },
            Request::Mount { path, subtree } => self.mount(path, subtree),
            Request::Unmount { path } => self.unmount(&path),
            Request::Status => Ok(Reply::Status(Box::new(self.status()))),
            Request::Settle => {
                let daemon = self.daemon()?;
                self.runtime.block_on(daemon.sync().settle());
                Ok(Reply::Done)
            }
            Request::Collect => self.collect(),
            Request::Stop => {
                self.stop();
                Ok(Reply::Done)
            }
        }
    }

    fn daemon(&self) -> Result<Arc<Daemon>, Refusal> {
        let not_open = || Refusal { kind: FailureKind::NotOpen, message: "no store is open".to_owned() };
        self.state().open.as_ref().map(|open| Arc::clone(&open.daemon)).ok_or_else(not_open)
    }

    fn open(&self, settings: StorageSettings) -> Answer {
        if let Some(open) = &self.state().open {
            let (is, wanted) = (open.settings.store.describe(), settings.store.describe());
            if is != wanted {
                let message = format!("{is} is served already, not {wanted}");
                return Err(Refusal { kind: FailureKind::OtherStore, message });
            }
            return Ok(Reply::Done);
        }
        let open = self.open_store(settings)?;
        self.check(&open)?;
        self.tell_keeper(&ToKeeper::Settings(open.settings.clone()))?;
        self.state().open.get_or_insert(open);
        Ok(Reply::Done)
    }

    fn open_store(&self, settings: StorageSettings) -> Result<Open, Refusal> {
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
            ..Settings::new(&self.directory)
        };
        let _runtime = self.runtime.enter();
        let daemon = Daemon::start(store, vfs).map_err(|error| Refusal::chain(FailureKind::Other, &error))?;
        Ok(Open { daemon: Arc::new(daemon), settings, bucket })
    }

    /// Only at the first opening: later a bucket that does not answer for a while is no reason to stop.
    fn check(&self, open: &Open) -> Result<(), Refusal> {
        let Some(bucket) = &open.bucket else { return Ok(()) };
        let late = StoreError::Unreachable { what: "look at the bucket", reason: "it took too long".to_owned() };
        let checked = self.runtime.block_on(async { tokio::time::timeout(CHECK_PATIENCE, bucket.check()).await });
        Ok(checked.unwrap_or(Err(late))?)
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
        drop(state);
        self.tell_keeper(&ToKeeper::Settings(settings))?;
        Ok(Reply::Done)
    }

    fn mount(&self, path: PathBuf, subtree: Option<Subtree>) -> Answer {
        let same = |served: &Served| served.mount.path.as_ref() == Some(&path);
        if let Some(served) = self.state().served.values().find(|served| same(served)) {
            if served.mount.subtree == subtree {
                return Ok(Reply::Done);
            }
            return Err(Refusal::mount(format!("{} shows another part already", path.display())));
        }
        self.daemon()?;
        let failed = |error: &fuse::MountError| Refusal::chain(FailureKind::Mount, error);
        remove_dead_mount(&path)?;
        let fd = fuse::mount(&path).map_err(|error| failed(&error))?;
        let number = device_number(&path);
        let mount = MountStatus { owner: None, path: Some(path.clone()), subtree, quota: None };
        self.begin(mount, fd, number).inspect_err(|_| {
            if let Err(error) = fuse::unmount(&path) {
                tracing::warn!(%error, "a mount that is not served stays");
            }
        })
    }

    /// Serves a connection, and has it kept.
    fn begin(&self, mount: MountStatus, fd: OwnedFd, number: Option<u32>) -> Answer {
        let daemon = self.daemon()?;
        let aborter = match (&self.connections, number) {
            (Some(connections), Some(number)) => connections.aborter(number).ok(),
            _ => None,
        };
        let spare = fd.try_clone().map_err(|error| Refusal::other(error.to_string()))?;
        let session = self
            .runtime
            .block_on(daemon.serve(fd, &view(&mount)))
            .map_err(|error| Refusal::chain(FailureKind::Other, &error))?;
        let name = {
            let mut state = self.state();
            state.next_name += 1;
            format!("{}-{}", std::process::id(), state.next_name)
        };
        let fds: Vec<_> =
            [Some(spare.as_fd()), aborter.as_ref().map(|file| file.as_fd())].into_iter().flatten().collect();
        let kept = ToKeeper::Keep(KeptMount { name: name.clone(), mount: mount.clone() });
        if let Err(error) = self.keeper.send(&kept, &fds) {
            tracing::warn!(%error, "the keeper is gone: when this process dies, its mounts do");
        }
        self.state().served.insert(name, Served { session, mount, aborter });
        Ok(Reply::Done)
    }

    fn unmount(&self, path: &Path) -> Answer {
        let name = {
            let state = self.state();
            let mut found = state.served.iter().filter(|(_, served)| served.mount.path.as_deref() == Some(path));
            found.next().map(|(name, _)| name.clone())
        };
        let Some(name) = name else {
            return Err(Refusal::mount(format!("nothing of ours is mounted on {}", path.display())));
        };
        fuse::unmount(path).map_err(|error| Refusal::chain(FailureKind::Mount, &error))?;
        self.end(&name);
        Ok(Reply::Done)
    }

    /// Ends a session, however busy it is.
    fn end(&self, name: &str) {
        let Some(served) = self.state().served.remove(name) else { return };
        if let Some(aborter) = &served.aborter {
            abort(aborter);
        }
        let _ = self.keeper.send(&ToKeeper::Forget { name: name.to_owned() }, &[]);
        served.session.stop();
    }

    fn status(&self) -> StorageStatus {
        let state = self.state();
        let mut mounts: Vec<MountStatus> = state.served.values().map(|served| served.mount.clone()).collect();
        mounts.sort_by(|a, b| (&a.path, &a.owner, &a.subtree).cmp(&(&b.path, &b.owner, &b.subtree)));
        let open = state.open.as_ref();
        StorageStatus {
            pid: std::process::id(),
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

    fn stop(&self) {
        let names: Vec<(String, Option<PathBuf>)> =
            self.state().served.iter().map(|(name, served)| (name.clone(), served.mount.path.clone())).collect();
        for (name, path) in names {
            if let Some(path) = path
                && let Err(error) = fuse::unmount(&path)
            {
                tracing::warn!(%error, "a mount stays");
            }
            self.end(&name);
        }
    }

    /// Mounts that went away with their sandbox, or were taken away by somebody else.
    fn tidy_for_ever(&self) {
        loop {
            std::thread::sleep(TIDY_EVERY);
            let ended: Vec<String> = {
                let state = self.state();
                let over = state.served.iter().filter(|(_, served)| !served.session.is_alive());
                over.map(|(name, _)| name.clone()).collect()
            };
            ended.iter().for_each(|name| self.end(name));
        }
    }

    fn tell_keeper(&self, message: &ToKeeper) -> Result<(), Refusal> {
        self.keeper.send(message, &[]).map_err(|error| Refusal::other(format!("the keeper does not listen: {error}")))
    }
}

fn view(mount: &MountStatus) -> View {
    View { subtree: mount.subtree.clone(), quota: Quota { bytes: mount.quota, files: None } }
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

/// What a daemon left that nobody kept alive. Something else that is mounted there stays.
fn remove_dead_mount(path: &Path) -> Result<(), Refusal> {
    match mount_line(path) {
        Some(line) if line.contains(" - fuse.isopod ") => {
            fuse::unmount(path).map_err(|error| Refusal::chain(FailureKind::Mount, &error))
        }
        Some(_) => Err(Refusal::mount(format!("something else is mounted on {}", path.display()))),
        None => Ok(()),
    }
}

/// By the list of mounts: looking at the mount itself would wait for the one who serves it, and that will be us.
fn device_number(path: &Path) -> Option<u32> {
    mount_line(path)?.split(' ').nth(2)?.strip_prefix("0:")?.parse().ok()
}

/// What the kernel says of the topmost mount on a path.
fn mount_line(path: &Path) -> Option<String> {
    let shown =
        path.to_str()?.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(shown.as_str())).map(str::to_owned)
}

impl Refusal {
    fn other(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Other, message: message.into() }
    }

    fn mount(message: String) -> Self {
        Self { kind: FailureKind::Mount, message }
    }

    fn chain(kind: FailureKind, error: &dyn std::error::Error) -> Self {
        let causes = std::iter::successors(Some(error), |error| error.source());
        Self { kind, message: causes.map(ToString::to_string).collect::<Vec<_>>().join(": ") }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::chain(FailureKind::from(&error), &error)
    }
}
