//! The resolver: answers for the zone, and forwards everything else.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::forward::{MAX_MESSAGE, forward, host_resolvers, read_message, write_message};
use super::message::{Verdict, Zone, failure};

/// Questions under way at the same time. Those beyond wait in the socket, and are dropped when it is full.
const MAX_CONCURRENT: usize = 256;
/// How long a TCP connection may be silent.
const IDLE: Duration = Duration::from_secs(20);
const BREATH: Duration = Duration::from_millis(50);

/// Answers over UDP for ever.
pub(super) async fn serve_udp(socket: UdpSocket, zone: Arc<Zone>) {
    let (socket, places) = (Arc::new(socket), Arc::new(Semaphore::new(MAX_CONCURRENT)));
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let Some(place) = place(&places).await else { return };
        match socket.recv_from(&mut buffer).await {
            Ok((length, client)) => {
                let (socket, zone, query) = (Arc::clone(&socket), Arc::clone(&zone), buffer[..length].to_vec());
                tokio::spawn(async move {
                    let _place = place;
                    if let Some(answer) = answer(&zone, &query, false).await {
                        // A client that has gone misses nothing.
                        let _ = socket.send_to(&answer, client).await;
                    }
                });
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

/// The same over TCP, for answers that are too long for UDP.
pub(super) async fn serve_tcp(listener: TcpListener, zone: Arc<Zone>) {
    let places = Arc::new(Semaphore::new(MAX_CONCURRENT));
    loop {
        let Some(place) = place(&places).await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let zone = Arc::clone(&zone);
                tokio::spawn(async move {
                    let _place = place;
                    // How a connection ends is the client's affair.
                    let _ = converse(stream, &zone).await;
                });
            }
            Err(error) => pause_after(&error).await,
        }
    }
}

async fn converse(mut stream: TcpStream, zone: &Zone) -> io::Result<()> {
    while let Ok(query) = tokio::time::timeout(IDLE, read_message(&mut stream)).await {
        match answer(zone, &query?, true).await {
            Some(answer) => write_message(&mut stream, &answer).await?,
            None => return Ok(()),
        }
    }
    Ok(())
}

async fn answer(zone: &Zone, query: &[u8], over_tcp: bool) -> Option<Vec<u8>> {
    match zone.decide(query) {
        Verdict::Answer(answer) => Some(answer),
        Verdict::Forward => {
            let servers = host_resolvers(zone.address).await;
            forward(query, &servers, over_tcp).await.or_else(|| failure(query))
        }
        Verdict::Drop => None,
    }
}

async fn place(places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(places).acquire_owned().await.ok()
}

/// Out of file descriptors, or a client that refused an answer.
async fn pause_after(error: &io::Error) {
    tracing::debug!(%error, "the resolver could not take a question");
    tokio::time::sleep(BREATH).await;
}
