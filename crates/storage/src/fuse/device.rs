//! The FUSE descriptor: one request per read, one reply per write, and a way to wake threads that wait for a request.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::wire::{self, MAX_REQUEST};

/// A connection to the kernel.
#[derive(Debug)]
pub(super) struct Device {
    fd: OwnedFd,
    stop: OwnedFd,
    /// Unused buffers. They are as long as the longest request.
    spare: Mutex<Vec<Vec<u8>>>,
}

/// The object on which one thread waits.
#[derive(Debug)]
pub(super) struct Queue(OwnedFd);

const REQUEST: u64 = 0;
const STOP: u64 = 1;

/// The result of a read.
pub(super) enum Received {
    Request(Vec<u8>, usize),
    /// The mount is gone, or the session was stopped.
    End,
}

impl Device {
    pub(super) fn new(fd: OwnedFd) -> rustix::io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self { fd, stop: eventfd(0, EventfdFlags::CLOEXEC)?, spare: Mutex::default() })
    }

    /// Waits for a request. If several threads wait, each on its own `queue`, one of them is woken.
    pub(super) fn receive(&self, queue: &Queue) -> rustix::io::Result<Received> {
        let mut buffer = self.spare.lock().expect("no panic while held").pop().unwrap_or_else(|| vec![0; MAX_REQUEST]);
        loop {
            match rustix::io::read(&self.fd, &mut buffer[..]) {
                Ok(length) => return Ok(Received::Request(buffer, length)),
                // The caller was killed in the meantime, or another thread took the request.
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if self.wait(queue)? {
                        return Ok(Received::End);
                    }
                }
                Err(Errno::NODEV) => return Ok(Received::End),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true if it is time to stop.
    fn wait(&self, queue: &Queue) -> rustix::io::Result<bool> {
        let mut events = Vec::with_capacity(2);
        match epoll::wait(&queue.0, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => Ok(events.iter().any(|event| event.data.u64() == STOP)),
            Err(error) => Err(error),
        }
    }

    /// Creates a queue for one thread to wait on.
    pub(super) fn queue(&self) -> rustix::io::Result<Queue> {
        let queue = epoll::create(CreateFlags::CLOEXEC)?;
        // Without `EXCLUSIVE`, every request would wake all threads, and all but one for nothing.
        epoll::add(&queue, &self.fd, EventData::new_u64(REQUEST), EventFlags::IN | EventFlags::EXCLUSIVE)?;
        epoll::add(&queue, &self.stop, EventData::new_u64(STOP), EventFlags::IN)?;
        Ok(Queue(queue))
    }

    /// Wakes all waiting threads permanently.
    pub(super) fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// Returns a buffer for reuse.
    pub(super) fn recycle(&self, buffer: Vec<u8>) {
        const KEPT: usize = 4;
        let mut spare = self.spare.lock().expect("no panic while held");
        if spare.len() < KEPT {
            spare.push(buffer);
        }
    }

    pub(super) fn answer(&self, unique: u64, answer: Result<&[u8], Errno>) {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (errno.raw_os_error(), &[][..]),
        };
        let header = wire::Out::default().u32(16 + body.len() as u32).u32((-error) as u32).u64(unique);
        match rustix::io::writev(&self.fd, &[IoSlice::new(&header.0), IoSlice::new(body)]) {
            // The caller was killed, or the mount is gone.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(error) => tracing::warn!(%error, unique, "the kernel refused a reply"),
        }
    }

    /// Sends a notification. It is not an error if the kernel has already forgotten the node.
    pub(super) fn notify(&self, message: &[u8]) {
        match rustix::io::write(&self.fd, message) {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR) => {}
            Err(error) => tracing::warn!(%error, "the kernel refused a notification"),
        }
    }
}
