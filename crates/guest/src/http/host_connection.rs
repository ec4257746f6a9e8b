//! A connection to the guest's own socket, and the descriptor that may come with its first bytes.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

/// How much the first read takes at most. Later ones read straight into HTTP's buffer.
const FIRST_READ: usize = 4096;

/// One connection.
#[derive(Debug)]
pub(crate) struct HostConnection {
    stream: UnixStream,
    has_read: bool,
    attached: Attached,
}

/// The descriptor that came with a connection, for whoever handles its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attached(Arc<Mutex<Option<OwnedFd>>>);

impl Attached {
    pub(crate) fn take(&self) -> Option<OwnedFd> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, descriptor: OwnedFd) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(descriptor);
    }
}

impl HostConnection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, has_read: false, attached: Attached::default() }
    }

    pub(crate) fn attached(&self) -> Attached {
        self.attached.clone()
    }

    pub(crate) fn into_stream(self) -> UnixStream {
        self.stream
    }

    fn poll_first_read(&mut self, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut buffer = [0; FIRST_READ];
        let room = into.remaining().min(FIRST_READ);
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_io(Interest::READABLE, || receive(&self.stream, &mut buffer[..room])) {
                Ok((length, descriptor)) => {
                    self.has_read = true;
                    into.put_slice(&buffer[..length]);
                    descriptor.into_iter().for_each(|descriptor| self.attached.put(descriptor));
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Receives bytes, and a descriptor if one came with them. The kernel closes those for which there is no room.
fn receive(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    Ok((received.bytes, descriptor))
}

impl AsyncRead for HostConnection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.has_read {
            return Pin::new(&mut this.stream).poll_read(context, into);
        }
        this.poll_first_read(context, into)
    }
}

impl AsyncWrite for HostConnection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
