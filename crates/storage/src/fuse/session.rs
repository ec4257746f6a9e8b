//! Serves one mount: the threads that read requests, the handshake, and the end.
//!
//! `Session::serve` answers the kernel's first message. `Session::take_over` continues a connection that another
//! process started. A session ends when the mount is removed or the session is stopped. Then everything that the kernel
//! had open through it is closed.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use rustix::io::Errno;
use tokio::runtime::Handle;

use super::device::{Device, Queue, Received};
use super::watch::Watch;
use super::wire::{self, Fields, Header, IN_HEADER, Operation, Out, init};
use crate::vfs::{DirEntry, FsError, Ino, MountId, Vfs, Watcher};

/// One thread waits in the kernel while another one works.
const THREADS: usize = 2;

static NEXT_MOUNT: AtomicU64 = AtomicU64::new(1);

/// Why a connection cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("the descriptor is not a FUSE connection")]
    Device(#[source] std::io::Error),
    #[error("the kernel speaks FUSE {major}.{minor}, which is too old")]
    Version { major: u32, minor: u32 },
    #[error("the mount was removed before it was served")]
    Gone,
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// A mount that is being served. Dropping it ends the session.
#[derive(Debug)]
pub struct Session {
    mount: Arc<Mount>,
    threads: Vec<JoinHandle<()>>,
}

/// The state that the threads of a session share.
#[derive(Debug)]
pub(super) struct Mount {
    pub(super) vfs: Arc<Vfs>,
    pub(super) id: MountId,
    /// The directory that is the root of this mount.
    pub(super) root: Ino,
    pub(super) watch: Arc<Watch>,
    device: Arc<Device>,
    runtime: Handle,
    next_handle: AtomicU64,
    pub(super) files: Mutex<HashMap<u64, OpenFile>>,
    pub(super) directories: Mutex<HashMap<u64, Arc<Vec<DirEntry>>>>,
    stopped: Stopped,
    /// Another process has passed nodes to the kernel that we do not know.
    taken_over: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub(super) ino: Ino,
    pub(super) write: bool,
}

/// Closed at the end of a session.
#[derive(Debug)]
struct Stopped(tokio::sync::Semaphore);

impl Default for Stopped {
    fn default() -> Self {
        Self(tokio::sync::Semaphore::new(0))
    }
}

impl Stopped {
    async fn wait(&self) {
        // There never is a permit, so this returns only when the semaphore is closed.
        let _ = self.0.acquire().await;
    }
}

/// A request and the buffer that contains it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) header: Header,
    pub(super) operation: Operation,
    pub(super) buffer: Vec<u8>,
    pub(super) length: usize,
}

impl Request {
    pub(super) fn fields(&self) -> Fields<'_> {
        Fields(&self.buffer[IN_HEADER..self.length])
    }
}

impl Session {
    /// Serves a descriptor that is mounted, or will be. Waits for the kernel's first message.
    pub fn serve(vfs: Arc<Vfs>, fd: OwnedFd, root: Ino) -> Result<Self, SessionError> {
        let device = Arc::new(Device::new(fd).map_err(|error| SessionError::Device(error.into()))?);
        shake_hands(&device)?;
        Self::start(vfs, device, root, false)
    }

    /// Continues a connection that another process served and did not end.
    pub fn take_over(vfs: Arc<Vfs>, fd: OwnedFd, root: Ino) -> Result<Self, SessionError> {
        let device = Arc::new(Device::new(fd).map_err(|error| SessionError::Device(error.into()))?);
        device.notify(&wire::resend());
        Self::start(vfs, device, root, true)
    }

    fn start(vfs: Arc<Vfs>, device: Arc<Device>, root: Ino, taken_over: bool) -> Result<Self, SessionError> {
        let mount = Arc::new(Mount::new(vfs, device, root, taken_over).map_err(SessionError::Thread)?);
        let id = mount.id;
        let mut session = Self { mount: mount.clone(), threads: Vec::new() };
        for index in 0..THREADS {
            let mount = mount.clone();
            let queue = mount.device.queue().map_err(|error| SessionError::Device(error.into()))?;
            let thread = std::thread::Builder::new().name(format!("fuse-{id}-{index}"));
            session.threads.push(thread.spawn(move || mount.run(&queue)).map_err(SessionError::Thread)?);
        }
        Ok(session)
    }

    /// Whether the mount still exists.
    pub fn is_alive(&self) -> bool {
        self.threads.iter().any(|thread| !thread.is_finished())
    }

    /// Ends the session. Unmount first, unless another process has the descriptor and continues the session.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.mount.stopped.0.close();
        self.mount.device.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.mount.close_all();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

impl Mount {
    /// A mount for which no thread reads requests yet.
    pub(super) fn new(vfs: Arc<Vfs>, device: Arc<Device>, root: Ino, taken_over: bool) -> std::io::Result<Self> {
        let id = NEXT_MOUNT.fetch_add(1, Ordering::Relaxed);
        let watch = Watch::start(id, root, device.clone())?;
        let watcher: Arc<dyn Watcher> = watch.clone();
        vfs.watch(&watcher);
        Ok(Self {
            vfs,
            id,
            root,
            watch,
            device,
            runtime: Handle::current(),
            next_handle: AtomicU64::new(1),
            files: Mutex::default(),
            directories: Mutex::default(),
            stopped: Stopped::default(),
            taken_over,
        })
    }

    fn run(self: Arc<Self>, queue: &Queue) {
        let _runtime = self.runtime.enter();
        loop {
            match self.device.receive(queue) {
                Ok(Received::Request(buffer, length)) => self.clone().begin(buffer, length),
                Ok(Received::End) => return,
                Err(error) => {
                    tracing::error!(%error, mount = self.id, "the FUSE connection failed");
                    return;
                }
            }
        }
    }

    /// Answers at once if nothing has to be awaited. Otherwise a task continues the request.
    fn begin(self: Arc<Self>, buffer: Vec<u8>, length: usize) {
        let Ok(header) = Header::parse(&buffer[..length]) else {
            tracing::error!(length, "the kernel sent an invalid request");
            return;
        };
        let Some(operation) = Operation::parse(header.operation) else {
            self.device.answer(header.unique, Err(Errno::NOSYS));
            return self.device.recycle(buffer);
        };
        let request = Arc::new(Request { header, operation, buffer, length });
        let mut work = self.clone().work(request.clone());
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => {
                drop(work);
                self.finish(request, answer);
            }
            Poll::Pending => drop(self.runtime.clone().spawn(async move {
                let deadline = self.vfs.settings.deadline;
                let answer = tokio::select! {
                    answer = tokio::time::timeout(deadline, work) => answer,
                    // The session is over. The task must not keep the connection open.
                    () = self.stopped.wait() => return,
                };
                self.finish(request, answer.unwrap_or_else(|_| Answer::from(FsError::Deadline)));
            })),
        }
    }

    fn work(self: Arc<Self>, request: Arc<Request>) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        Box::pin(async move { self.answer(&request).await })
    }

    fn finish(&self, request: Arc<Request>, answer: Answer) {
        let unique = request.header.unique;
        match answer {
            Answer::Done(body) => self.device.answer(unique, Ok(&body)),
            Answer::Refused(errno) => self.device.answer(unique, Err(errno)),
            Answer::Silence => {}
        }
        if let Some(request) = Arc::into_inner(request) {
            self.device.recycle(request.buffer);
        }
    }

    pub(super) fn next_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// The node of a request. The kernel only names nodes that were passed to it.
    pub(super) fn ino(&self, node: u64) -> Result<Ino, FsError> {
        let ino = wire::ino_of(node, self.root);
        let ours = self.watch.knows(ino) || (self.taken_over && self.vfs.is_below(ino, self.root));
        if ours { Ok(ino) } else { Err(FsError::Stale) }
    }

    fn close_all(&self) {
        let files: Vec<OpenFile> =
            self.files.lock().expect("no panic while held").drain().map(|(_, file)| file).collect();
        for file in files {
            let _ = self.vfs.close_file(file.ino, file.write);
        }
        for (ino, times) in self.watch.drain() {
            self.vfs.forget(ino, times);
        }
    }
}

/// The reply to the kernel.
#[derive(Debug)]
pub(super) enum Answer {
    Done(Vec<u8>),
    Refused(Errno),
    /// Some messages have no reply.
    Silence,
}

impl From<FsError> for Answer {
    fn from(error: FsError) -> Self {
        if matches!(error, FsError::Store(_) | FsError::Local { .. } | FsError::Deadline) {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%error, cause, "a file system call failed");
        }
        Self::Refused(error.errno())
    }
}

fn shake_hands(device: &Device) -> Result<(), SessionError> {
    let queue = device.queue().map_err(|error| SessionError::Device(error.into()))?;
    let received = device.receive(&queue).map_err(|error| SessionError::Device(error.into()))?;
    let Received::Request(buffer, length) = received else { return Err(SessionError::Gone) };
    let broken = |_| SessionError::Device(std::io::ErrorKind::InvalidData.into());
    let header = Header::parse(&buffer[..length]).map_err(broken)?;
    if Operation::parse(header.operation) != Some(Operation::Init) {
        return Err(SessionError::Device(std::io::ErrorKind::InvalidData.into()));
    }
    let mut fields = Fields(&buffer[IN_HEADER..length]);
    let (major, minor) = (fields.u32().map_err(broken)?, fields.u32().map_err(broken)?);
    if major != wire::MAJOR || minor < 31 {
        device.answer(header.unique, Err(Errno::PROTO));
        return Err(SessionError::Version { major, minor });
    }
    let read_ahead = fields.u32().map_err(broken)?;
    let low = u64::from(fields.u32().map_err(broken)?);
    let high = if low & init::EXTENDED != 0 { u64::from(fields.u32().map_err(broken)?) } else { 0 };
    device.answer(header.unique, Ok(&welcome(read_ahead, low | high << 32)));
    device.recycle(buffer);
    Ok(())
}

/// Our side of the handshake. The kernel must not use a write-back cache: when a write returns, we have its data.
fn welcome(read_ahead: u32, offered: u64) -> Vec<u8> {
    let wanted = init::ASYNC_READ
        | init::ATOMIC_O_TRUNC
        | init::BIG_WRITES
        | init::READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::PARALLEL_DIROPS
        | init::MAX_PAGES
        | init::HANDLE_KILLPRIV_V2
        | init::EXTENDED
        | init::HAS_RESEND;
    let flags = wanted & offered;
    let mut out = Out::default()
        .u32(wire::MAJOR)
        .u32(wire::MINOR)
        .u32(read_ahead.max(wire::MAX_WRITE as u32))
        .u32(flags as u32)
        .u16(64)
        .u16(48)
        .u32(wire::MAX_WRITE as u32)
        .u32(1)
        .u16((wire::MAX_WRITE / 4096) as u16)
        .u16(0)
        .u32((flags >> 32) as u32);
    out.0.resize(64, 0);
    out.0
}
