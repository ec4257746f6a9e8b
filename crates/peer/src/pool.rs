//! A few connections to each other member, opened when they are needed. Every request has a stream of its own on one of
//! them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::{Method, Request};

use crate::dial::{DialError, PeerConnection, dial};
use crate::members::Members;
use crate::origin::Origin;
use crate::server_id::ServerId;
use crate::stream::TunnelStream;
use crate::tls::PeerTls;

/// So that one core encrypting for one connection is not the limit.
const CONNECTIONS: usize = 2;
/// How long a member that could not be reached is not tried again, so that requests for it fail at once.
const PAUSE: Duration = Duration::from_millis(500);
/// The path of streams. The other side refuses every other one.
pub(crate) const TUNNEL: &str = "https://node.isopod.internal/tunnel";

#[derive(Debug)]
pub(crate) struct Pool {
    members: Arc<Members>,
    /// Replaced when the certificate is renewed.
    tls: Arc<RwLock<PeerTls>>,
    of: Mutex<HashMap<ServerId, Arc<Connections>>>,
}

#[derive(Debug, Default)]
struct Connections {
    next: AtomicUsize,
    slots: [tokio::sync::Mutex<Slot>; CONNECTIONS],
}

#[derive(Debug, Default)]
struct Slot {
    open: Option<PeerConnection>,
    failed_at: Option<Instant>,
}

impl Pool {
    pub(crate) fn new(members: Arc<Members>, tls: Arc<RwLock<PeerTls>>) -> Self {
        Self { members, tls, of: Mutex::default() }
    }

    /// Opens a stream to a member for one request.
    pub(crate) async fn open(&self, server: &ServerId, origin: &Origin) -> Result<TunnelStream, DialError> {
        if self.members.find(server).is_some_and(|member| !member.is_reachable) {
            return Err(DialError::Unreachable);
        }
        let connections =
            Arc::clone(self.of.lock().unwrap_or_else(PoisonError::into_inner).entry(server.clone()).or_default());
        let slot = &connections.slots[connections.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS];
        // A kept connection may have ended a moment ago. Nothing was sent over it then.
        for _ in 0..2 {
            let (connection, is_new) = self.connection(slot, server).await?;
            match begin(&connection, origin).await {
                Ok(stream) => return Ok(stream),
                Err(error) if is_new => return Err(error.into()),
                Err(_) => connection.ended.cancel(),
            }
        }
        let connection = self.connection(slot, server).await?.0;
        Ok(begin(&connection, origin).await?)
    }

    async fn connection(
        &self,
        slot: &tokio::sync::Mutex<Slot>,
        server: &ServerId,
    ) -> Result<(PeerConnection, bool), DialError> {
        let mut slot = slot.lock().await;
        if let Some(open) = slot.open.as_ref().filter(|open| !open.ended.is_cancelled()) {
            return Ok((open.clone(), false));
        }
        slot.open = None;
        if slot.failed_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return Err(DialError::FailedBefore);
        }
        let tls = Arc::clone(&self.tls.read().unwrap_or_else(PoisonError::into_inner).client);
        match dial(&self.members, tls, server).await {
            Ok(opened) => {
                slot.failed_at = None;
                slot.open = Some(opened.clone());
                Ok((opened, true))
            }
            Err(error) => {
                slot.failed_at = Some(Instant::now());
                Err(error)
            }
        }
    }
}

async fn begin(connection: &PeerConnection, origin: &Origin) -> Result<TunnelStream, h2::Error> {
    let mut sender = connection.sender.clone().ready().await?;
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(TUNNEL);
    origin.write(request.headers_mut());
    let (response, send) = sender.send_request(request, false)?;
    Ok(TunnelStream::opened(send, response))
}
