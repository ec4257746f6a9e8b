//! Serves each connection in its own task, and shuts all of them down.

use axum::Router;
use futures::future::BoxFuture;
use isopod_api::Peer;
use isopod_peer::{Origin, TunnelStream};
use std::fmt;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clustered::Clustered;
use super::dispatch::{Dispatch, Sender};
use super::handshake::{begins_with_handshake, handshake};
use super::limits::ConnectionLimits;
use super::socket::Socket;
use super::timeouts::{ActiveRequests, TimeoutStream};
use super::tunnel::TunnelSocket;
use crate::delivery::{ClientConnection, Outbox, Unacknowledged};
use crate::edge::Edge;
use crate::http::BrowserRules;
use crate::tls::TlsIdentity;

/// How long the last frames of streams may take to be sent.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
const STREAM_WINDOW: u32 = 512 << 10;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The connections of a server.
pub struct Connections {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// The settings of connections.
#[derive(Clone, Debug)]
pub(crate) struct ListenerSettings {
    pub(crate) limits: ConnectionLimits,
    /// `None` for plain HTTP.
    pub(crate) tls: Option<TlsIdentity>,
    /// With TLS, also answers plain HTTP.
    pub(crate) plain_beside_tls: bool,
    pub(crate) unacknowledged: Unacknowledged,
    /// `None` if the server is in no cluster.
    pub(crate) clustered: Option<Clustered>,
}

/// The state that all connections share.
struct Shared {
    dispatch: Arc<Dispatch>,
    builder: auto::Builder<TokioExecutor>,
    limits: ConnectionLimits,
    tls: Option<TlsIdentity>,
    plain_beside_tls: bool,
    unacknowledged: Unacknowledged,
    /// Cancelled when connections should finish their requests and accept no more.
    draining: CancellationToken,
    /// Cancelled when the grace period for that is over.
    closing: CancellationToken,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("open", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl Connections {
    pub(crate) fn new(edge: Edge, browsers: BrowserRules, api: Router, settings: ListenerSettings) -> Self {
        let ListenerSettings { limits, tls, plain_beside_tls, unacknowledged, clustered } = settings;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // hyper's own timer does not distinguish an idle connection from a slow head, so `TimeoutStream` handles
        // timeouts.
        builder.http1().header_read_timeout(None).max_buf_size(limits.max_head.max(8 << 10));
        // Services in sandboxes and their clients may depend on the case; see `upstream::connect`.
        builder.http1().preserve_header_case(true).title_case_headers(true);
        builder
            .http2()
            .max_header_list_size(u32::try_from(limits.max_head).unwrap_or(u32::MAX))
            // An SDK uses one connection for all its streams, and each running command holds one.
            .max_concurrent_streams(u32::try_from(limits.per_sandbox).unwrap_or(u32::MAX))
            // One upload that a sandbox does not read must not block the others on the same connection.
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let shared = Shared {
            dispatch: Arc::new(Dispatch::new(edge, browsers, api, limits, clustered)),
            builder,
            limits,
            tls,
            plain_beside_tls,
            unacknowledged,
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
        };
        Self { shared: Arc::new(shared), tasks: TaskTracker::new() }
    }

    pub fn start(&self, stream: TcpStream, peer: IpAddr, place: OwnedSemaphorePermit) {
        // Send small frames of a stream at once. Without this, the first one took 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection closed before it was served");
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let _place = place;
            shared.serve(stream, peer).await;
        });
    }

    /// Serves a client in this process, without TLS. Its requests count as those of `peer`.
    pub fn start_inside(&self, stream: TcpStream, peer: Peer) {
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let socket = Socket::new(stream, shared.unacknowledged);
            let outbox = socket.outbox();
            shared.serve_http(socket, outbox, Sender::Client(peer)).await;
        });
    }

    /// Serves requests that other servers of the cluster forward.
    pub fn for_members(&self) -> impl Fn(TunnelStream, Origin) -> BoxFuture<'static, ()> + Send + Sync + use<> {
        let (shared, tasks) = (Arc::clone(&self.shared), self.tasks.clone());
        move |stream, origin| {
            let shared = Arc::clone(&shared);
            Box::pin(tasks.track_future(async move {
                let socket = TunnelSocket::new(stream);
                let outbox = socket.outbox();
                shared.serve_http(socket, outbox, Sender::Member(Arc::new(origin))).await;
            }))
        }
    }

    /// Waits for requests in progress, up to `grace`. Then ends streams from sandboxes, and closes the remaining
    /// connections.
    pub async fn drain(&self, grace: Duration, streams_end: &CancellationToken) {
        self.shared.draining.cancel();
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_ok() {
            return;
        }
        streams_end.cancel();
        if tokio::time::timeout(CLOSE_GRACE, self.tasks.wait()).await.is_err() {
            self.shared.closing.cancel();
            self.tasks.wait().await;
        }
    }
}

impl Shared {
    async fn serve(&self, stream: TcpStream, address: IpAddr) {
        let mut socket = Socket::new(stream, self.unacknowledged);
        let outbox = socket.outbox();
        let wants_tls = match self.tls {
            Some(_) if self.plain_beside_tls => self.wants_tls(&mut socket).await,
            _ => Some(true),
        };
        let tls = match (&self.tls, wants_tls) {
            (_, None) => return,
            (Some(tls), Some(true)) => tls,
            _ => return self.serve_http(socket, outbox, client(address, false)).await,
        };
        let encrypted = tokio::select! {
            encrypted = handshake(tls, socket, self.limits.head_timeout) => encrypted,
            () = self.draining.cancelled() => return,
        };
        match encrypted {
            Ok(stream) => self.serve_http(stream, outbox, client(address, true)).await,
            Err(error) => {
                tracing::debug!(%address, error = isopod_wire::error_chain(&error), "TLS handshake failed")
            }
        }
    }

    /// Determines the protocol by the first byte, which may take as long as any request. Returns `None` if no byte
    /// arrives.
    async fn wants_tls(&self, socket: &mut Socket) -> Option<bool> {
        tokio::select! {
            begun = tokio::time::timeout(self.limits.idle_timeout, begins_with_handshake(socket)) => begun.ok()?.ok(),
            () = self.draining.cancelled() => None,
        }
    }

    async fn serve_http<S>(&self, stream: S, outbox: Arc<Outbox>, sender: Sender)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let requests = Arc::new(ActiveRequests::default());
        let stream = TimeoutStream::new(stream, Arc::clone(&requests), Arc::clone(&outbox), self.limits);
        let dispatch = Arc::clone(&self.dispatch);
        let peer = sender.peer();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let is_http1 = request.version() < Version::HTTP_2;
            let connection = ClientConnection { outbox: Arc::clone(&outbox), is_http1, is_encrypted: peer.tls };
            request.extensions_mut().insert(connection);
            let (dispatch, requests, sender) = (Arc::clone(&dispatch), Arc::clone(&requests), sender.clone());
            async move { Ok::<_, std::convert::Infallible>(dispatch.answer(&sender, &requests, request).await) }
        });
        let mut serving = pin!(self.builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = self.draining.cancelled() => {
                serving.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = serving => ended,
                    () = self.closing.cancelled() => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %peer.address, %error, "a connection broke");
        }
    }
}

fn client(address: IpAddr, tls: bool) -> Sender {
    Sender::Client(Peer { address, tls, is_forwarded: false })
}
