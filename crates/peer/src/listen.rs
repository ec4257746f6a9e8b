//! The listener for other members. It speaks nothing but TLS, and only with members of the cluster and machines that
//! join it.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Request, Response, StatusCode};
use rustls::server::Acceptor;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::dial::{CONNECTION_WINDOW, MAX_FRAME, MAX_RESETS, MAX_STREAMS, STREAM_WINDOW, until_silent};
use crate::join::Doorkeeper;
use crate::members::Members;
use crate::origin::Origin;
use crate::stream::TunnelStream;
use crate::tls::{JOIN_PROTOCOL, PeerTls, presented};

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most connections at the same time. A cluster of hundreds of servers has two from each.
const MAX_CONNECTIONS: usize = 4096;
/// The most machines that may be joining, and connections whose handshake has not ended.
const MAX_UNKNOWN: usize = 512;

/// Serves the request in a stream, as if its client had connected here.
pub(crate) type Serve = Arc<dyn Fn(TunnelStream, Origin) -> BoxFuture<'static, ()> + Send + Sync>;

pub(crate) struct PeerListener {
    pub(crate) tls: Arc<RwLock<PeerTls>>,
    pub(crate) members: Arc<Members>,
    pub(crate) doorkeeper: Doorkeeper,
    pub(crate) serve: Serve,
    pub(crate) stop: CancellationToken,
}

/// Why a connection was not accepted.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the handshake took too long")]
    Slow,
    #[error("the handshake failed")]
    Handshake(#[source] io::Error),
    #[error("its certificate names no member of the cluster")]
    Stranger,
    #[error("it broke")]
    Http(#[from] h2::Error),
}

impl PeerListener {
    /// Accepts connections until the server stops.
    pub(crate) async fn run(self, listener: TcpListener) {
        let shared = Arc::new(self);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let unknown = Arc::new(Semaphore::new(MAX_UNKNOWN));
        let stop = shared.stop.clone();
        let tasks = tokio_util::task::TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accept(&listener, &places, &unknown) => accepted,
            };
            let Some((stream, place, waiting)) = accepted else { continue };
            let shared = Arc::clone(&shared);
            tasks.spawn(async move {
                let _place = place;
                let stop = shared.stop.clone();
                tokio::select! {
                    () = stop.cancelled() => {}
                    served = shared.serve_connection(stream, waiting) => {
                        if let Err(refused) = served {
                            let error = isopod_wire::error_chain(&refused);
                            tracing::debug!(error, "a connection to the listener for other servers ended");
                        }
                    }
                }
            });
        }
        tasks.close();
        tasks.wait().await;
    }

    async fn serve_connection(
        &self,
        stream: TcpStream,
        waiting: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<(), Refused> {
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.handshake(stream));
        let stream = handshake.await.map_err(|_| Refused::Slow)??;
        if stream.get_ref().1.alpn_protocol() == Some(JOIN_PROTOCOL) {
            self.doorkeeper.answer(stream).await;
            return Ok(());
        }
        let shown = presented(stream.get_ref().1.peer_certificates()).ok_or(Refused::Stranger)?;
        let member = self.members.admit(&shown).await.ok_or(Refused::Stranger)?;
        drop(waiting);
        tokio::select! {
            served = self.serve_member(stream) => served,
            () = member.gone.cancelled() => Err(Refused::Stranger),
        }
    }

    async fn handshake(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, Refused> {
        stream.set_nodelay(true).map_err(Refused::Handshake)?;
        let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(Refused::Handshake)?;
        let joins = begun.client_hello().alpn().is_some_and(|mut names| names.any(|name| name == JOIN_PROTOCOL));
        let config = {
            let tls = self.tls.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(if joins { &tls.join } else { &tls.server })
        };
        begun.into_stream(config).await.map_err(Refused::Handshake)
    }

    /// Takes a member's streams until its connection ends. Streams end with their connection.
    async fn serve_member(&self, stream: TlsStream<TcpStream>) -> Result<(), Refused> {
        let mut connection = server_builder().handshake::<_, Bytes>(stream).await?;
        let mut silent = std::pin::pin!(until_silent(connection.ping_pong()));
        loop {
            let stream = tokio::select! {
                stream = connection.accept() => stream,
                () = silent.as_mut() => return Ok(()),
            };
            match stream {
                Some(stream) => {
                    let (request, response) = stream?;
                    self.take(request, response);
                }
                None => return Ok(()),
            }
        }
    }

    fn take(&self, request: Request<RecvStream>, mut response: SendResponse<Bytes>) {
        let origin = Origin::read(request.headers()).filter(|_| request.uri().path() == "/tunnel");
        let Some(origin) = origin else {
            let mut refused = Response::new(());
            *refused.status_mut() = StatusCode::NOT_FOUND;
            if response.send_response(refused, true).is_err() {
                response.send_reset(Reason::REFUSED_STREAM);
            }
            return;
        };
        // Fails only if the other side has given up already.
        if let Ok(send) = response.send_response(Response::new(()), false) {
            let stream = TunnelStream::taken(send, request.into_body());
            tokio::spawn((self.serve)(stream, origin));
        }
    }
}

type Accepted = (TcpStream, tokio::sync::OwnedSemaphorePermit, tokio::sync::OwnedSemaphorePermit);

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>, unknown: &Arc<Semaphore>) -> Option<Accepted> {
    let waiting = Arc::clone(unknown).acquire_owned().await.ok()?;
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place, waiting)),
        Err(error) => {
            // Usually out of file descriptors. Wait until other connections have ended.
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not accept a connection of another server");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

fn server_builder() -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_send_buffer_size(1 << 20)
        .max_concurrent_streams(MAX_STREAMS)
        .max_concurrent_reset_streams(MAX_RESETS)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(None);
    builder
}
