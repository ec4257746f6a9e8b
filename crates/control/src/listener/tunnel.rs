//! The stream of a request that another server of the cluster has forwarded. Counts written bytes, as [`Socket`] does for
//! a client's connection. What the other server has taken counts as received.
//!
//! [`Socket`]: super::socket::Socket

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use isopod_peer::TunnelStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::delivery::Outbox;

pub(super) struct TunnelSocket {
    stream: TunnelStream,
    outbox: Arc<Outbox>,
}

impl TunnelSocket {
    pub(super) fn new(stream: TunnelStream) -> Self {
        Self { stream, outbox: Arc::new(Outbox::of_tunnel()) }
    }

    pub(super) fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.outbox)
    }
}

impl Drop for TunnelSocket {
    fn drop(&mut self) {
        self.outbox.close_tunnel();
    }
}

impl AsyncRead for TunnelSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TunnelSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.outbox.before_write();
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        match &written {
            Poll::Ready(written) => self.outbox.wrote(*written.as_ref().unwrap_or(&0)),
            Poll::Pending => self.outbox.blocked(),
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
