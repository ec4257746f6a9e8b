//! Talks to the daemon, and starts it if it does not run. Every call uses a connection of its own, and blocks.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use isopod_channel::{connect_in, listen_in};
use rustix::fs::{FlockOperation, flock};

use super::channel::Channel;
use super::message::{Collected, FailureKind, Reply, Request, StorageSettings, StorageStatus, StoreSettings, VERSION};
use crate::object::s3::{Credentials, Keys};
use crate::subtree::Subtree;

const SOCKET: &str = "daemon.sock";
/// The number of clients that can wait while the daemon restarts.
const BACKLOG: i32 = 128;
const LOG: &str = "daemon.log";
/// Held while a process starts the daemon, opens a store or ends an idle daemon.
pub(super) const LOCK: &str = "start.lock";
/// Where the daemon mounts the whole bucket for the server.
pub(super) const ROOT_MOUNT: &str = "mnt";
/// The daemon may be restarting, or waiting for a distant bucket.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How often a daemon that closed the connection is retried, and the pause in which it may end or restart.
const MAX_TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);
/// A client that waits for uploads waits as long as it takes.
const LONG_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// How to start this program as a supervisor. The listening socket is its standard input.
#[derive(Clone, Debug)]
pub struct DaemonProgram {
    /// Usually this program itself.
    pub program: PathBuf,
    /// The arguments that make it a supervisor.
    pub arguments: Vec<OsString>,
    /// Its complete environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// Why a request to the daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the storage daemon is not running")]
    NotRunning,
    #[error("could not start the storage daemon")]
    Start(#[source] io::Error),
    #[error("could not talk to the storage daemon")]
    Talk(#[source] io::Error),
    #[error("the storage daemon has another version; stop it with: isopod storage stop --force")]
    Version,
    #[error("{message}")]
    Refused {
        /// The kind of failure, for callers that have a hint for each.
        kind: FailureKind,
        message: String,
    },
}

/// A mount that the caller has made.
#[derive(Clone, Debug)]
pub struct NewMount<'a> {
    pub owner: &'a str,
    pub subtree: Subtree,
    /// The kernel's number of its connection.
    pub number: u32,
    /// The maximum number of bytes below it.
    pub quota: Option<u64>,
    /// The owner had this mount before and lost it. It is served even if the store is unavailable.
    pub again: bool,
}

/// As long as this exists, the daemon counts as used.
#[derive(Debug)]
pub struct Attachment {
    channel: Channel,
}

impl Attachment {
    /// Blocks until the daemon is gone.
    pub fn wait(&self) {
        // The daemon sends nothing. This returns when it ends.
        while self.channel.receive::<serde::de::IgnoredAny>().is_ok() {}
    }
}

/// A daemon, identified by its directory.
#[derive(Clone, Debug)]
pub struct StorageClient {
    directory: PathBuf,
}

impl StorageClient {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Where the daemon mounts the whole bucket for the server.
    pub fn root(&self) -> PathBuf {
        self.directory.join(ROOT_MOUNT)
    }

    /// Whether a daemon is running.
    pub fn is_running(&self) -> bool {
        connect_in(&self.directory, SOCKET).is_ok()
    }

    /// Makes sure that a daemon runs and serves this store. New keys replace those that it has.
    pub fn ensure(&self, program: &DaemonProgram, settings: &StorageSettings) -> Result<(), ClientError> {
        let _lock = self.start_lock().map_err(ClientError::Start)?;
        let mut tries = 1;
        loop {
            match self.ensure_open(program, settings) {
                // If the daemon dies at this moment, the connection breaks. The next attempt finds another daemon, or
                // none.
                Err(ClientError::Talk(error)) if tries < MAX_TRIES && has_hung_up(&error) => {
                    tries += 1;
                    std::thread::sleep(BETWEEN_TRIES);
                }
                done => return done,
            }
        }
    }

    fn ensure_open(&self, program: &DaemonProgram, settings: &StorageSettings) -> Result<(), ClientError> {
        if !self.is_running() {
            self.start(program).map_err(ClientError::Start)?;
        }
        let store = self.hello()?;
        self.ask_done(&Request::Open(settings.clone()), &[])?;
        if let (Some(_), StoreSettings::S3(bucket)) = (store, &settings.store)
            && let Keys::Given(credentials) = &bucket.keys
        {
            self.set_keys(credentials.clone())?;
        }
        Ok(())
    }

    /// Mounts the whole bucket at [`StorageClient::root`].
    pub fn ensure_root(&self) -> Result<(), ClientError> {
        let root = self.root();
        // A mount whose daemon is gone does not respond, so replace it.
        let dead = Some(rustix::io::Errno::NOTCONN.raw_os_error());
        match std::fs::symlink_metadata(&root) {
            Err(error) if error.raw_os_error() == dead => {}
            _ => make_private(&root).map_err(ClientError::Start)?,
        }
        self.mount(&root, None)
    }

    /// Registers a user of the daemon. Does not start one.
    pub fn attach(&self, who: &str) -> Result<Attachment, ClientError> {
        let socket = connect_in(&self.directory, SOCKET).map_err(|_| ClientError::NotRunning)?;
        let channel = Channel::new(socket);
        channel.send(&Request::Attach { who: who.to_owned() }, &[]).map_err(ClientError::Talk)?;
        match channel.receive().map_err(ClientError::Talk)?.0 {
            Reply::Done => Ok(Attachment { channel }),
            other => Err(unexpected(&other)),
        }
    }

    /// Serves a connection that is already mounted.
    pub fn serve(&self, mount: &NewMount<'_>, fd: &OwnedFd) -> Result<(), ClientError> {
        let NewMount { owner, subtree, number, quota, again } = mount.clone();
        self.ask_done(&Request::Serve { owner: owner.to_owned(), subtree, number, quota, again }, &[fd.as_fd()])
    }

    /// Mounts the bucket, or a part of it, on a directory of this host.
    pub fn mount(&self, path: &Path, subtree: Option<Subtree>) -> Result<(), ClientError> {
        self.ask_done(&Request::Mount { path: path.to_owned(), subtree }, &[])
    }

    pub fn unmount(&self, path: &Path) -> Result<(), ClientError> {
        self.ask_done(&Request::Unmount { path: path.to_owned() }, &[])
    }

    pub fn status(&self) -> Result<StorageStatus, ClientError> {
        match self.ask(&Request::Status, &[], TIMEOUT)? {
            Reply::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    pub fn set_keys(&self, credentials: Credentials) -> Result<(), ClientError> {
        self.ask_done(&Request::Keys(credentials), &[])
    }

    /// Waits until the bucket has everything that was changed before this call.
    pub fn settle(&self) -> Result<(), ClientError> {
        match self.ask(&Request::Settle, &[], LONG_TIMEOUT)? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Like [`StorageClient::settle`], with a timeout. Returns what is left.
    pub fn settle_for(&self, timeout: Duration) -> Result<StorageStatus, ClientError> {
        match self.ask(&Request::SettleFor(timeout), &[], TIMEOUT.saturating_add(timeout))? {
            Reply::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// Deletes local copies of files that the bucket has.
    pub fn collect(&self) -> Result<Collected, ClientError> {
        match self.ask(&Request::Collect, &[], LONG_TIMEOUT)? {
            Reply::Collected(collected) => Ok(collected),
            other => Err(unexpected(&other)),
        }
    }

    /// Unmounts everything and ends the daemon. What is not uploaded is uploaded by the next one.
    pub fn stop(&self) -> Result<(), ClientError> {
        self.ask_done(&Request::Stop, &[])?;
        self.wait_for_end();
        Ok(())
    }

    /// Like [`StorageClient::stop`], for a daemon with another protocol version. Returns false if there is none.
    pub fn stop_other_version(&self) -> Result<bool, ClientError> {
        let _lock = self.start_lock().map_err(ClientError::Start)?;
        match self.hello() {
            Err(ClientError::Version) => self.stop().map(|()| true),
            Ok(_) | Err(ClientError::NotRunning) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Like [`StorageClient::stop`], but fails if the daemon is in use or something is not uploaded yet.
    pub fn stop_unused(&self) -> Result<(), ClientError> {
        if !self.is_running() {
            return Err(ClientError::NotRunning);
        }
        // Nothing may start to use it in the meantime.
        let _lock = self.start_lock().map_err(ClientError::Start)?;
        self.ask_done(&Request::StopUnused, &[])?;
        self.wait_for_end();
        Ok(())
    }

    fn wait_for_end(&self) {
        // Wait until the supervisor is gone as well, so that the caller can remove the directory.
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while self.is_running() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The open store of a daemon with our protocol version.
    fn hello(&self) -> Result<Option<String>, ClientError> {
        match self.ask(&Request::Hello, &[], TIMEOUT)? {
            Reply::Hello { version: VERSION, store } => Ok(store),
            Reply::Hello { .. } => Err(ClientError::Version),
            other => Err(unexpected(&other)),
        }
    }

    fn ask_done(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        match self.ask(request, fds, TIMEOUT)? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<Reply, ClientError> {
        let socket = connect_in(&self.directory, SOCKET).map_err(|_| ClientError::NotRunning)?;
        let channel = Channel::with_timeout(socket, timeout).map_err(ClientError::Talk)?;
        channel.send(request, fds).map_err(ClientError::Talk)?;
        let (reply, _) = channel.receive().map_err(ClientError::Talk)?;
        match reply {
            Reply::Failed { kind, message } => Err(ClientError::Refused { kind, message }),
            reply => Ok(reply),
        }
    }

    fn start_lock(&self) -> io::Result<File> {
        make_private(&self.directory)?;
        let file = File::options().create(true).truncate(false).write(true).open(self.directory.join(LOCK))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    fn start(&self, program: &DaemonProgram) -> io::Result<()> {
        let listener = listen_in(&self.directory, SOCKET, BACKLOG)?;
        let log = File::options().create(true).append(true).open(self.directory.join(LOG))?;
        let mut child = Command::new(&program.program)
            .arg0("isopod")
            .args(&program.arguments)
            .env_clear()
            .envs(program.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .process_group(0)
            .spawn()?;
        // Reap it when it ends, so that a long-lived server has no zombie.
        std::thread::Builder::new().name("storage-reaper".to_owned()).spawn(move || child.wait())?;
        Ok(())
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Whether the peer has closed the connection, as opposed to being silent.
fn has_hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected | UnexpectedEof)
}

fn unexpected(_: &Reply) -> ClientError {
    ClientError::Talk(io::ErrorKind::InvalidData.into())
}
