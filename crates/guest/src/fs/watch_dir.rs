//! `WatchDir`: streams the changes in a directory. The polled watchers get their events from here too.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use isopod_wire::rpc::filesystem::watch_dir_response::{Event, KeepAlive, StartEvent};
use isopod_wire::rpc::filesystem::{FilesystemEvent, WatchDirRequest, WatchDirResponse};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::deadline::at;
use crate::fs::tree::{Batch, TreeError, WatchedTree};
use crate::fs::{blocking, failed, resolve};
use crate::http::{Reply, stream_body};
use crate::rights::with_ids_of;
use crate::rpc::{Call, Code, Codec, RpcError, end_frame, frame_message, stream_reply};
use crate::sys::watch_fd;
use crate::users::User;

pub(crate) async fn watch_dir(call: Call, request: WatchDirRequest) -> Result<Reply, RpcError> {
    let user = call.user()?;
    let path = resolve(&call, &user, &request.path)?;
    let watch = Watch::new(user, path, request.recursive, request.include_entry, request.allow_network_mounts).await?;
    let stream = WatchStream {
        watch,
        codec: call.codec,
        keepalive: call.keepalive,
        deadline: call.deadline,
        started: false,
        ended: false,
    };
    let body = stream_body(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok(bytes), stream))
    });
    Ok(stream_reply(call.codec, body))
}

struct WatchStream {
    watch: Watch,
    codec: Codec,
    keepalive: Duration,
    deadline: Option<Instant>,
    started: bool,
    ended: bool,
}

impl WatchStream {
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        if !self.started {
            self.started = true;
            return Some(self.frame(Event::Start(StartEvent {})));
        }
        tokio::select! {
            event = self.watch.next() => match event {
                Ok(event) => Some(self.frame(Event::Filesystem(event))),
                Err(error) => Some(self.fail(&error)),
            },
            () = tokio::time::sleep(self.keepalive) => Some(self.frame(Event::Keepalive(KeepAlive {}))),
            () = at(self.deadline) => Some(self.fail(&RpcError::deadline_exceeded())),
        }
    }

    fn frame(&self, event: Event) -> Bytes {
        frame_message(self.codec, &WatchDirResponse { event: Some(event) })
    }

    fn fail(&mut self, error: &RpcError) -> Bytes {
        self.ended = true;
        end_frame(Some(error))
    }
}

/// More than `fs.inotify.max_queued_events`, which is 16,384 unless the host has changed it.
const MAX_KERNEL_QUEUE: usize = 20_000;

/// A watched directory whose events can be awaited.
#[derive(Debug)]
pub(crate) struct Watch {
    readable: AsyncFd<Arc<OwnedFd>>,
    user: User,
    /// `None` while another thread reads events.
    tree: Option<WatchedTree>,
    /// A read in progress on another thread; it returns the tree.
    reading: Option<oneshot::Receiver<(WatchedTree, Result<Batch, TreeError>)>>,
    /// Whether the kernel may have more events although it has not signalled again.
    more: bool,
    waiting: VecDeque<FilesystemEvent>,
}

impl Watch {
    pub(crate) async fn new(
        user: User,
        path: PathBuf,
        recursive: bool,
        include_entry: bool,
        network_mounts: bool,
    ) -> Result<Self, RpcError> {
        let tree = blocking(user.clone(), [path], move |[path], _| {
            check(path, network_mounts)?;
            let doing = format!("error adding path {} to watcher", path.display());
            WatchedTree::new(path.clone(), recursive, include_entry).map_err(|error| failed(&doing, &error))
        })
        .await?;
        let readable = watch_fd(tree.descriptor(), Interest::READABLE)
            .map_err(|error| failed("error creating watcher", &error))?;
        Ok(Self { readable, user, tree: Some(tree), reading: None, more: true, waiting: VecDeque::new() })
    }

    /// Returns the next event. Cancel safe: dropping the future loses no event.
    pub(crate) async fn next(&mut self) -> Result<FilesystemEvent, RpcError> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(event);
            }
            if self.more || self.reading.is_some() {
                self.read_batch().await?;
                continue;
            }
            let ready = self.readable.readable().await;
            // Clear before reading, so that later events signal again.
            ready.map_err(|error| failed("error reading watcher", &error))?.clear_ready();
            self.more = true;
        }
    }

    /// Returns the events of every change that was made before this call. Cancel safe.
    pub(crate) async fn events_so_far(&mut self) -> Result<VecDeque<FilesystemEvent>, RpcError> {
        if self.reading.is_some() {
            // This read may have begun before the last change.
            self.read_batch().await?;
        }
        self.more = true;
        // A directory that changes all the time is never drained, so this stops after as many as the kernel can have kept.
        while self.more && self.waiting.len() < MAX_KERNEL_QUEUE {
            self.read_batch().await?;
        }
        Ok(std::mem::take(&mut self.waiting))
    }

    /// Reads a batch of events on another thread, or waits for the read that is in progress. Cancel safe.
    async fn read_batch(&mut self) -> Result<(), RpcError> {
        if let Some(tree) = self.tree.take() {
            let user = self.user.clone();
            self.reading = Some(crate::blocking::run(move || read(tree, &user)));
        }
        let Some(reading) = &mut self.reading else {
            return Err(RpcError::new(Code::Internal, "watcher error: an earlier read failed"));
        };
        let done = reading.await;
        self.reading = None;
        let (tree, batch) = done.map_err(|error| RpcError::new(Code::Internal, error.to_string()))?;
        self.tree = Some(tree);
        let batch = batch.map_err(|error| watcher_error(&error))?;
        self.more = !batch.drained;
        self.waiting.extend(batch.events);
        Ok(())
    }
}

/// Also looks at directories that are new, which may be reached through a link of the user.
fn read(mut tree: WatchedTree, user: &User) -> (WatchedTree, Result<Batch, TreeError>) {
    let batch = with_ids_of(user, || tree.read());
    (tree, batch)
}

fn watcher_error(error: &TreeError) -> RpcError {
    let code = match error {
        TreeError::Overflow => Code::ResourceExhausted,
        TreeError::Read(_) => Code::Internal,
    };
    RpcError::new(code, format!("watcher error: {error}"))
}

fn check(path: &Path, network_mounts: bool) -> Result<(), RpcError> {
    let meta =
        std::fs::metadata(path).map_err(|error| failed(&format!("path {} not found", path.display()), &error))?;
    if !meta.is_dir() {
        return Err(RpcError::new(Code::InvalidArgument, format!("path {} not a directory", path.display())));
    }
    if !network_mounts && is_on_network_mount(path) {
        let message = format!("cannot watch path on network filesystem: {}", path.display());
        return Err(RpcError::new(Code::InvalidArgument, message));
    }
    Ok(())
}

/// inotify does not report changes that other machines make to these file systems. The type of `f_type` differs between C
/// libraries; all of them fit into an `i128`.
fn is_on_network_mount(path: &Path) -> bool {
    const NFS: i128 = 0x6969;
    const CIFS: i128 = 0xff53_4d42;
    const SMB: i128 = 0x517b;
    const SMB2: i128 = 0xfe53_4d42;
    const FUSE: i128 = 0x6573_5546;
    rustix::fs::statfs(path).is_ok_and(|stat| [NFS, CIFS, SMB, SMB2, FUSE].contains(&i128::from(stat.f_type)))
}
