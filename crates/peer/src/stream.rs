//! A stream of HTTP/2 as a plain stream of bytes. The windows of HTTP/2 are its buffers: what the reader has not taken
//! is not acknowledged, so a slow reader slows the writer on the other server.
//!
//! An orderly end (shutdown) ends one direction. A stream that is dropped before that is reset, which the other side sees
//! as an error at once.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most that is copied at once. A larger frame would delay others on the same connection.
const MAX_CHUNK: usize = 64 << 10;

/// One forwarded request, and its response.
pub struct TunnelStream {
    send: SendStream<Bytes>,
    receive: Receive,
    /// What has arrived and was not read.
    chunk: Bytes,
    is_shut: bool,
}

enum Receive {
    /// The other side has not taken the stream yet.
    Waiting(ResponseFuture),
    Open(RecvStream),
}

impl TunnelStream {
    /// A stream that this side has opened. It can be written to before the other side has taken it.
    pub(crate) fn opened(send: SendStream<Bytes>, response: ResponseFuture) -> Self {
        Self { send, receive: Receive::Waiting(response), chunk: Bytes::new(), is_shut: false }
    }

    /// A stream that the other side has opened.
    pub(crate) fn taken(send: SendStream<Bytes>, receive: RecvStream) -> Self {
        Self { send, receive: Receive::Open(receive), chunk: Bytes::new(), is_shut: false }
    }

    fn poll_receive<'s>(receive: &'s mut Receive, context: &mut Context<'_>) -> Poll<io::Result<&'s mut RecvStream>> {
        if let Receive::Waiting(response) = receive {
            let response = ready!(Pin::new(response).poll(context)).map_err(broken)?;
            if response.status() != StatusCode::OK {
                let refused = format!("the other server refused the stream: {}", response.status());
                return Poll::Ready(Err(io::Error::other(refused)));
            }
            *receive = Receive::Open(response.into_body());
        }
        match receive {
            Receive::Open(stream) => Poll::Ready(Ok(stream)),
            Receive::Waiting(_) => Poll::Pending,
        }
    }
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let stream = ready!(Self::poll_receive(&mut this.receive, context))?;
        while this.chunk.is_empty() {
            match ready!(stream.poll_data(context)) {
                Some(Ok(chunk)) => this.chunk = chunk,
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = this.chunk.len().min(buffer.remaining());
        buffer.put_slice(&this.chunk[..length]);
        this.chunk.advance(length);
        stream.flow_control().release_capacity(length).map_err(broken)?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let wanted = data.len().min(MAX_CHUNK);
        self.send.reserve_capacity(wanted);
        while self.send.capacity() == 0 {
            match ready!(self.send.poll_capacity(context)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        let length = self.send.capacity().min(wanted);
        self.send.send_data(Bytes::copy_from_slice(&data[..length]), false).map_err(broken)?;
        Poll::Ready(Ok(length))
    }

    /// HTTP/2 sends by itself.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.is_shut, true) {
            self.send.send_data(Bytes::new(), true).map_err(broken)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for TunnelStream {
    fn drop(&mut self) {
        if !self.is_shut {
            self.send.send_reset(Reason::CANCEL);
        }
    }
}

impl fmt::Debug for TunnelStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunnelStream").field("is_shut", &self.is_shut).finish_non_exhaustive()
    }
}

fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
    }
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}
