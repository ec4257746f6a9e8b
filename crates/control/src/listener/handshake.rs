//! The start of a connection to a TLS port. A client that uses plain HTTP gets an error message, and its request is not
//! processed: it may contain a key that just crossed the network unencrypted.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::server::TlsStream;

use super::socket::Socket;
use crate::tls::TlsIdentity;

/// Every TLS connection starts with a record of this type.
const HANDSHAKE_RECORD: u8 = 0x16;
/// How long and how much a client may continue to send after it was refused.
const CLOSE_GRACE: Duration = Duration::from_secs(2);
const CLOSE_GRACE_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the client closed the connection without sending anything")]
    Silent,
    #[error("the client uses plain HTTP")]
    Plain,
    #[error("the client took too long")]
    Slow,
    #[error("the handshake failed")]
    Failed(#[source] io::Error),
}

/// Performs the TLS handshake within `limit`.
pub(super) async fn handshake(
    tls: &TlsIdentity,
    stream: Socket,
    limit: Duration,
) -> Result<TlsStream<Socket>, HandshakeError> {
    tokio::time::timeout(limit, begin(tls, stream)).await.unwrap_or(Err(HandshakeError::Slow))
}

/// Whether the client uses TLS. Consumes nothing from the connection.
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
            // The client may already be gone.
            let _ = tokio::time::timeout(CLOSE_GRACE, refuse_plain(stream)).await;
            Err(HandshakeError::Plain)
        }
    }
}

async fn refuse_plain(mut stream: Socket) -> io::Result<()> {
    let body = r#"{"code":400,"message":"this port only accepts https: use https:// instead of http://"}"#;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection, and the client would lose the response.
    tokio::io::copy(&mut stream.take(CLOSE_GRACE_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}
