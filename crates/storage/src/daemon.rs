//! The daemon: one file system, its uploads, and the mounts that show parts of it.
//!
//! It is a process of its own, so that mounts outlive the server. The caller gives it a store, and then either mount
//! points on this host or descriptors that a sandbox has opened and mounted inside its own namespaces.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fuse::{self, MountError, Session, SessionError};
use crate::object::ObjectStore;
use crate::subtree::Subtree;
use crate::sync::Sync;
use crate::vfs::{Caller, FsError, Ino, OpenError, Quota, ROOT, Settings, Vfs};

/// The file system of one bucket, being served.
#[derive(Debug)]
pub struct Daemon {
    vfs: Arc<Vfs>,
    sync: Sync,
    mounts: Vec<(PathBuf, Session)>,
}

/// What a mount shows.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The directory to show, which is created if necessary. `None` shows the whole bucket.
    pub subtree: Option<Subtree>,
    /// The limits for its content.
    pub quota: Quota,
}

/// Why a mount cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot open the directory to show")]
    View(#[from] FsError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl Daemon {
    /// Opens the file system and continues what an earlier process left. Must be called inside a Tokio runtime.
    pub fn start(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Self, OpenError> {
        let vfs = Vfs::open(store, settings)?;
        let sync = Sync::start(vfs.clone());
        Ok(Self { vfs, sync, mounts: Vec::new() })
    }

    /// Mounts a view on a directory of this host.
    pub async fn mount(&mut self, path: &Path, view: &View) -> Result<(), ServeError> {
        let root = self.open_view(view).await?;
        let fd = fuse::mount(path)?;
        match Session::serve(self.vfs.clone(), fd, root) {
            Ok(session) => {
                self.mounts.push((path.to_owned(), session));
                Ok(())
            }
            Err(error) => {
                fuse::unmount(path)?;
                Err(error.into())
            }
        }
    }

    /// Serves a view through a descriptor that the caller has mounted.
    pub async fn serve(&self, fd: OwnedFd, view: &View) -> Result<Session, ServeError> {
        let root = self.open_view(view).await?;
        Ok(Session::serve(self.vfs.clone(), fd, root)?)
    }

    /// Like [`Daemon::serve`], for a client that saw the same view before through a connection that is lost. Does not
    /// contact the store, because it may be unavailable.
    pub async fn serve_again(&self, fd: OwnedFd, view: &View) -> Result<Session, ServeError> {
        let root = self.resume_view(view).await?;
        Ok(Session::serve(self.vfs.clone(), fd, root)?)
    }

    /// Continues a connection that another daemon served and that the supervisor kept open. Does not contact the store,
    /// because it may be unavailable.
    pub async fn take_over(&self, fd: OwnedFd, view: &View) -> Result<Session, ServeError> {
        let root = self.resume_view(view).await?;
        Ok(Session::take_over(self.vfs.clone(), fd, root)?)
    }

    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    pub fn sync(&self) -> &Sync {
        &self.sync
    }

    /// Unmounts everything on this host and ends. What is not yet uploaded is uploaded after the next start.
    pub async fn stop(self) {
        for (path, session) in self.mounts {
            if let Err(error) = fuse::unmount(&path) {
                tracing::warn!(%error, "could not unmount; the mount stays");
            }
            session.stop();
        }
        self.sync.stop().await;
    }

    async fn open_view(&self, view: &View) -> Result<Ino, FsError> {
        let Some(subtree) = &view.subtree else { return Ok(ROOT) };
        let all = self.ensure_directory(ROOT, subtree.kind.name().as_bytes()).await?;
        let root = self.ensure_directory(all, subtree.name.as_bytes()).await?;
        self.hold(root, view.quota).await
    }

    /// Like `open_view`, for a view that was open before.
    async fn resume_view(&self, view: &View) -> Result<Ino, FsError> {
        let Some(subtree) = &view.subtree else { return Ok(ROOT) };
        let root = self.vfs.resume_directory(&[subtree.kind.name().as_bytes(), subtree.name.as_bytes()])?;
        self.hold(root, view.quota).await
    }

    async fn hold(&self, root: Ino, quota: Quota) -> Result<Ino, FsError> {
        // Mounting passes the node to the kernel. It must not be removed while it is the root of a mount.
        self.vfs.remember(root)?;
        if quota != Quota::default() {
            self.vfs.limit(root, quota).await?;
        }
        Ok(root)
    }

    async fn ensure_directory(&self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        match self.vfs.lookup(parent, name).await {
            Ok(attr) => return Ok(attr.ino),
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
        match self.vfs.make_directory(Caller::default(), parent, name, self.vfs.settings.dir_mode).await {
            Ok(attr) => Ok(attr.ino),
            Err(FsError::Exists) => Ok(self.vfs.lookup(parent, name).await?.ino),
            Err(error) => Err(error),
        }
    }
}
