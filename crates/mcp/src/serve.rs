//! Serves one client over a pair of streams, from its first message to its end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rmcp::ServiceExt as _;
use rmcp::service::ServerInitializeError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

use crate::config::McpConfig;
use crate::sandboxes::Sandboxes;
use crate::server::McpServer;

/// Why a client couldn't be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// It didn't begin as MCP clients do.
    #[error("the client did not start an MCP session")]
    Start(#[source] Box<ServerInitializeError>),
    /// A bug: a part of the server panicked.
    #[error("the MCP server failed")]
    Failed(#[source] tokio::task::JoinError),
}

/// Serves a client until its input ends or `shutdown` completes. Then kills the sandboxes that are the client's own.
///
/// # Errors
/// If the client doesn't speak MCP.
pub async fn serve(
    config: McpConfig,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let ended = CancellationToken::new();
    let sandboxes = Arc::new(Sandboxes::new(config));
    let keep_alive = tokio::spawn(Arc::clone(&sandboxes).keep_alive());
    let watch = tokio::spawn({
        let ended = ended.clone();
        async move {
            shutdown.await;
            ended.cancel();
        }
    });
    let conversation = async {
        let served = converse(Arc::clone(&sandboxes), input, output, ended.clone()).await;
        ended.cancel();
        served
    };
    // At once, while a client that doesn't read may hold up the last answers.
    let removal = async {
        ended.cancelled().await;
        keep_alive.abort();
        sandboxes.close().await;
    };
    let (served, ()) = tokio::join!(conversation, removal);
    watch.abort();
    served
}

async fn converse(
    sandboxes: Arc<Sandboxes>,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    ended: CancellationToken,
) -> Result<(), ServeError> {
    let server = McpServer::new(sandboxes, ended.clone());
    let input = WatchedInput { input, ended: ended.clone() };
    let running = match server.serve_with_ct((input, output), ended).await {
        Ok(running) => running,
        // A client that leaves at once, and one that only asked what the server can do.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => return Err(ServeError::Start(Box::new(error))),
    };
    running.waiting().await.map(drop).map_err(ServeError::Failed)
}

/// Says when the input has ended. Without it, calls that run would go on for seconds, and clients that end a server give
/// it two.
struct WatchedInput<R> {
    input: R,
    ended: CancellationToken,
}

impl<R: AsyncRead + Unpin> AsyncRead for WatchedInput<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.input).poll_read(cx, buffer);
        if let Poll::Ready(read) = &polled
            && (read.is_err() || buffer.filled().len() == before)
        {
            self.ended.cancel();
        }
        polled
    }
}
