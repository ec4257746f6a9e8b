//! Opens a connection to another member and keeps watch over it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::members::Members;
use crate::server_id::ServerId;
use crate::tls::presented;

/// How long a connection may take until it can be used.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// How often the other side is asked whether it is there, and how long it may take to answer. A machine that disappears
/// without a word is noticed within their sum.
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// How much one request may have under way, and all of a connection together.
pub(crate) const STREAM_WINDOW: u32 = 2 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 64 << 20;
pub(crate) const MAX_FRAME: u32 = 256 << 10;
pub(crate) const MAX_STREAMS: u32 = 100_000;
/// Clients give up many requests. What a hostile client of a web server does with that, members don't do to each other.
pub(crate) const MAX_RESETS: usize = 100_000;

/// Why there is no connection to a member.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("it is not a member of the cluster")]
    Stranger,
    #[error("it has not told its address yet")]
    NoAddress,
    #[error("it does not renew its lease")]
    Unreachable,
    #[error("the connection took too long")]
    Slow,
    #[error("an attempt failed a moment ago")]
    FailedBefore,
    #[error("could not connect to {address}")]
    Connect { address: String, source: io::Error },
    #[error("could not begin TLS with {address}")]
    Tls { address: String, source: io::Error },
    #[error("{0} showed a key that is not the member's")]
    OtherKey(String),
    #[error("could not begin HTTP/2")]
    Http(#[from] h2::Error),
}

/// A connection to another member. It ends when the other side does not answer, or is removed from the cluster.
#[derive(Clone, Debug)]
pub(crate) struct PeerConnection {
    pub(crate) sender: SendRequest<Bytes>,
    /// Cancelled when it has ended.
    pub(crate) ended: CancellationToken,
}

pub(crate) async fn dial(
    members: &Members,
    tls: Arc<ClientConfig>,
    server: &ServerId,
) -> Result<PeerConnection, DialError> {
    tokio::time::timeout(DIAL_TIMEOUT, connect(members, tls, server)).await.unwrap_or(Err(DialError::Slow))
}

async fn connect(members: &Members, tls: Arc<ClientConfig>, server: &ServerId) -> Result<PeerConnection, DialError> {
    let member = members.find_or_read(server).await.ok_or(DialError::Stranger)?;
    let address = member.address.clone();
    if address.is_empty() {
        return Err(DialError::NoAddress);
    }
    let connected = TcpStream::connect(&address).await.and_then(|stream| {
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    let stream = connected.map_err(|source| DialError::Connect { address: address.clone(), source })?;
    let stream = begin_tls(tls, server, &address, stream).await?;
    let shown = presented(stream.get_ref().1.peer_certificates());
    let is_member = match &shown {
        Some(shown) => members.admit(shown).await.is_some(),
        None => false,
    };
    if !is_member {
        return Err(DialError::OtherKey(address));
    }
    let (sender, connection) = client_builder().handshake(stream).await?;
    let ended = CancellationToken::new();
    tokio::spawn(keep(connection, member.gone, ended.clone()));
    Ok(PeerConnection { sender, ended })
}

async fn begin_tls(
    tls: Arc<ClientConfig>,
    server: &ServerId,
    address: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, DialError> {
    let failed = |source| DialError::Tls { address: address.to_owned(), source };
    let name = ServerName::try_from(server.certificate_name()).map_err(|error| failed(io::Error::other(error)))?;
    TlsConnector::from(tls).connect(name, stream).await.map_err(failed)
}

fn client_builder() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_send_buffer_size(1 << 20)
        .initial_max_send_streams(MAX_STREAMS as usize)
        .max_concurrent_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(None)
        .enable_push(false);
    builder
}

/// Runs a connection until it breaks. All its streams break with it.
async fn keep(
    mut connection: h2::client::Connection<TlsStream<TcpStream>, Bytes>,
    gone: CancellationToken,
    ended: CancellationToken,
) {
    let _ended = ended.drop_guard();
    let pings = connection.ping_pong();
    tokio::select! {
        closed = connection => {
            if let Err(error) = closed {
                tracing::debug!(error = isopod_wire::error_chain(&error), "a connection to another server broke");
            }
        }
        () = gone.cancelled() => tracing::info!("closed the connection to a server that was removed from the cluster"),
        () = until_silent(pings) => tracing::warn!("another server of the cluster does not answer; closed the connection to it"),
    }
}

/// Returns when the other side has not answered in time.
pub(crate) async fn until_silent(pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(PING_EVERY).await;
        match tokio::time::timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection has ended by itself.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}
