//! How a connection to a port that speaks TLS begins. Who speaks plain HTTP is told so in words, and nothing that they
//! sent is read: it may hold a key that has just crossed the network in the clear.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::server::TlsStream;

use super::socket::Socket;
use crate::tls::TlsIdentity;

/// Every TLS connection begins with a record of this type.
const HANDSHAKE_RECORD: u8 = 0x16;
/// How long and how much a client may go on sending after it was refused.
const FAREWELL: Duration = Duration::from_secs(2);
const FAREWELL_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the client closed the connection before it began")]
    Silent,
    #[error("the client speaks plain HTTP")]
    Plain,
    #[error("the client took too long")]
    Slow,
    #[error("the handshake failed")]
    Failed(#[source] io::Error),
}

/// Makes an encrypted stream of the connection, within `limit`.
pub(super) async fn shake_hands(
    tls: &TlsIdentity,
    stream: Socket,
    limit: Duration,
) -> Result<TlsStream<Socket>, HandshakeError> {
    tokio::time::timeout(limit, begin(tls, stream)).await.unwrap_or(Err(HandshakeError::Slow))
}

/// Whether the client speaks TLS. Nothing is taken from the connection.
pub(super) async fn begins_with_handshake(stream: &mut Socket) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 1 && first[0] == HANDSHAKE_RECORD)
}

async fn begin(tls: &TlsIdentity, mut stream: Socket) -> Result<TlsStream<Socket>, HandshakeError> {
    let mut first = [0];
    match stream.peek(&mut first).await.map_err(HandshakeError::Failed)? {
        0 => Err(HandshakeError::Silent),
        _ if first[0] == HANDSHAKE_RECORD => tls.acceptor.accept(stream).await.map_err(HandshakeError::Failed),
        _ => {
            // A client that has gone already cannot be told.
            let _ = tokio::time::timeout(FAREWELL, refuse_plain(stream)).await;
            Err(HandshakeError::Plain)
        }
    }
}

async fn refuse_plain(mut stream: Socket) -> io::Result<()> {
    let body = r#"{"code":400,"message":"this port speaks https only: write https:// instead of http://"}"#;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection, and the client would lose the answer.
    tokio::io::copy(&mut stream.take(FAREWELL_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}
