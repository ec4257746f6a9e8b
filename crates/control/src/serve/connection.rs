//! One task per connection, and their common end.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::dispatch::Dispatch;
use super::patience::{Patience, PatientStream};
use crate::app::App;
use crate::config::ConnectionLimits;

/// The connections of a server.
pub(super) struct Connections {
    dispatch: Arc<Dispatch>,
    builder: auto::Builder<TokioExecutor>,
    limits: ConnectionLimits,
    tasks: TaskTracker,
    /// No further requests: finish what is under way.
    draining: CancellationToken,
    /// The time for that is over.
    closing: CancellationToken,
}

impl Connections {
    pub(super) fn new(app: Arc<App>, limits: ConnectionLimits) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // Patience is ours: hyper's timer does not tell an idle connection from a slow head.
        builder.http1().header_read_timeout(None).max_buf_size(limits.max_head.max(8 << 10));
        builder.http2().max_header_list_size(u32::try_from(limits.max_head).unwrap_or(u32::MAX));
        Self {
            dispatch: Arc::new(Dispatch::new(app)),
            builder,
            limits,
            tasks: TaskTracker::new(),
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
        }
    }

    pub(super) fn start(&self, stream: TcpStream, peer: IpAddr, place: OwnedSemaphorePermit) {
        // Small frames of a stream must leave at once: without this the first one took 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone before it began");
            return;
        }
        let patience = Arc::new(Patience::default());
        let stream = PatientStream::new(stream, Arc::clone(&patience), self.limits);
        let dispatch = Arc::clone(&self.dispatch);
        let service = service_fn(move |request| {
            let (dispatch, patience) = (Arc::clone(&dispatch), Arc::clone(&patience));
            async move { Ok::<_, std::convert::Infallible>(dispatch.answer(peer, &patience, request).await) }
        });
        let serving = self.builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        let (draining, closing) = (self.draining.clone(), self.closing.clone());
        self.tasks.spawn(async move {
            let _place = place;
            let mut serving = pin!(serving);
            let ended = tokio::select! {
                ended = serving.as_mut() => ended,
                () = draining.cancelled() => {
                    serving.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = serving => ended,
                        () = closing.cancelled() => return,
                    }
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%peer, %error, "a connection broke");
            }
        });
    }

    /// Lets requests under way finish, for a while.
    pub(super) async fn drain(&self, patience: Duration) {
        self.draining.cancel();
        self.tasks.close();
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            self.closing.cancel();
            self.tasks.wait().await;
        }
    }
}
