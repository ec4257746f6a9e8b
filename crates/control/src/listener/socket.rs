//! A client's connection at the kernel boundary. Counts written bytes, so that the edge knows how much of a stream has
//! arrived.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::net::Shutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::delivery::{Outbox, Unacknowledged};

pub(super) struct Socket {
    read: OwnedReadHalf,
    /// Shared with the outbox.
    write: Arc<OwnedWriteHalf>,
    outbox: Arc<Outbox>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, unacknowledged: Unacknowledged) -> Self {
        let (read, write) = stream.into_split();
        let write = Arc::new(write);
        let outbox = Arc::new(Outbox::new(&write, unacknowledged));
        Self { read, write, outbox }
    }

    pub(super) fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.outbox)
    }

    /// Reads the first bytes without consuming them.
    pub(super) async fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read.peek(buffer).await
    }

    fn poll_io(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&OwnedWriteHalf) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let Poll::Ready(ready) = self.write.as_ref().as_ref().poll_write_ready(context) else {
                self.outbox.blocked();
                return Poll::Pending;
            };
            ready?;
            self.outbox.before_write();
            match write(&self.write) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.outbox.wrote(*written.as_ref().unwrap_or(&0));
                    return Poll::Ready(written);
                }
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.outbox.close(&self.write);
        if self.outbox.resets() {
            // Dissolves the connection, which sends a reset. Dropping the halves would send a FIN before it.
            let _ = rustix::net::connect_unspec(self.write.as_ref().as_ref());
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_io(context, |socket| socket.try_write(data))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.shut();
        Poll::Ready(rustix::net::shutdown(self.write.as_ref().as_ref(), Shutdown::Write).map_err(Into::into))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(context, |socket| socket.try_write_vectored(data))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
