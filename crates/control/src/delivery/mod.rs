//! Reports to the guest how much of a process's output has reached the client. The guest keeps the rest for the next
//! client that connects ([docs/semantics/output.md](../../../../docs/semantics/output.md)).
//!
//! ```text
//! guest ── body of a stream ──▶ TrackedBody ──▶ HTTP (and TLS) ──▶ Socket ──▶ client
//!   ▲                               each frame ──▶ Outbox ◀── written, flushed, acknowledged
//!   └────────── reports ──────── StreamDelivery ◀──┘
//! ```
//! A frame counts as sent once HTTP has dropped it and the connection is flushed. Over HTTP/1, everything handed out is
//! part of the next write, so it is reported just before that write: if this server is killed because of something that
//! a client has read, that output is already reported. The report is a store to memory shared with the guest. To lose
//! output, a kill would have to hit the few instructions between the store and the write. If the connection has no room
//! for the frame, the report is retracted until it has. Over HTTP/2, a frame may wait for the client's window, so it is
//! reported after it was sent. When a client turns out to be gone, the last report retracts what its host never
//! acknowledged.

mod channel;
mod outbox;
mod stream;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{HeaderMap, Method, Request};
use isopod_positions::Slot;
use isopod_wire::delivery::{CHANNEL_HEADER, REPORTS_HEADER, SLOT_HEADER, STREAM_HEADER};
use isopod_wire::node::{Incarnation, NodeApi};
use tokio_util::sync::CancellationToken;

pub(crate) use outbox::Outbox;
pub use outbox::Unacknowledged;
pub(crate) use stream::TrackedBody;

use channel::{OpenError, ReportChannel};
use stream::StreamDelivery;

/// How long opening a channel may delay a request.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// The calls whose responses are process output.
const START: &str = "/process.Process/Start";
const CONNECT: &str = "/process.Process/Connect";

/// The deliveries of one running sandbox.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    /// Held while a channel is being opened.
    channel: tokio::sync::Mutex<ChannelState>,
    /// Active streams. Written when one begins.
    streams: Mutex<Vec<Weak<StreamDelivery>>>,
}

#[derive(Debug, Default)]
enum ChannelState {
    #[default]
    Empty,
    Open(Arc<ReportChannel>, Instant),
    /// The guest is an older version without channels.
    Unsupported,
}

/// The connection that a response goes to.
#[derive(Clone, Debug)]
pub(crate) struct ClientConnection {
    pub(crate) outbox: Arc<Outbox>,
    /// HTTP/1 sends one response at a time, and each frame is written as soon as it is handed out.
    pub(crate) is_http1: bool,
    pub(crate) is_encrypted: bool,
}

/// The guest to report to.
#[derive(Clone, Copy)]
pub(crate) struct RunningGuest<'g> {
    pub(crate) node: &'g dyn NodeApi,
    pub(crate) incarnation: &'g Incarnation,
    /// Cancelled when the sandbox stops.
    pub(crate) gate: &'g CancellationToken,
}

/// The guest accepts no reports, so it would consider everything that it sends delivered. A guest that does not answer
/// this request would hardly answer the call itself.
#[derive(Debug, thiserror::Error)]
#[error("could not open a channel to the guest for delivery reports")]
pub(crate) struct NoChannel;

/// A call whose response is tracked.
pub(crate) struct Tracking {
    channel: Arc<ReportChannel>,
    outbox: Arc<Outbox>,
    is_http1: bool,
}

impl Deliveries {
    /// Prepares a call for tracking, if its response is output and the guest supports tracking.
    pub(crate) async fn track(
        &self,
        guest: RunningGuest<'_>,
        request: &mut Request<Body>,
        client: Option<ClientConnection>,
    ) -> Result<Option<Tracking>, NoChannel> {
        let is_connect = request.uri().path() == CONNECT;
        if request.method() != Method::POST || !(is_connect || request.uri().path() == START) {
            return Ok(None);
        }
        let Some(ClientConnection { outbox, is_http1, .. }) = client else { return Ok(None) };
        let Some(channel) = self.channel(guest).await? else { return Ok(None) };
        if is_connect {
            self.take_back_lost();
        }
        let headers = request.headers_mut();
        headers.insert(CHANNEL_HEADER, channel.name().clone());
        headers.insert(REPORTS_HEADER, channel.sent().into());
        Ok(Some(Tracking { channel, outbox, is_http1 }))
    }

    /// Starts tracking the response, if the guest agreed.
    pub(crate) fn begin(&self, tracking: Tracking, headers: &mut HeaderMap) -> Option<Arc<StreamDelivery>> {
        let (stream, slot) = (take_number(headers, STREAM_HEADER), take_number(headers, SLOT_HEADER));
        let slot = slot.and_then(Slot::new).filter(|_| tracking.channel.has_positions());
        let delivery = Arc::new(StreamDelivery::new(tracking.channel, stream?, slot, Arc::clone(&tracking.outbox)));
        if tracking.is_http1 {
            tracking.outbox.announce(&delivery);
        }
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&delivery));
        Some(delivery)
    }

    /// Closes the channel if no stream has used it for this long.
    pub(crate) fn close_idle(&self, idle_for: Duration) {
        let Ok(mut slot) = self.channel.try_lock() else { return };
        if let ChannelState::Open(channel, used) = &*slot
            && used.elapsed() >= idle_for
            && Arc::strong_count(channel) == 1
        {
            *slot = ChannelState::Empty;
        }
    }

    /// Retracts what a client lost, because a client that reconnects must get what was sent to a connection that it
    /// closed or that is dead.
    fn take_back_lost(&self) {
        let streams: Vec<_> = {
            let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.iter().filter_map(Weak::upgrade).collect()
        };
        streams.iter().for_each(|stream| stream.take_back_lost());
    }

    /// Returns `None` for a guest without channels.
    async fn channel(&self, guest: RunningGuest<'_>) -> Result<Option<Arc<ReportChannel>>, NoChannel> {
        let mut slot = self.channel.lock().await;
        if let ChannelState::Open(channel, used) = &mut *slot
            && !channel.is_broken()
        {
            *used = Instant::now();
            return Ok(Some(Arc::clone(channel)));
        }
        if matches!(*slot, ChannelState::Unsupported) {
            return Ok(None);
        }
        let opening = ReportChannel::open(guest.node, guest.incarnation, guest.gate);
        match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(channel)) => {
                let channel = Arc::new(channel);
                *slot = ChannelState::Open(Arc::clone(&channel), Instant::now());
                Ok(Some(channel))
            }
            Ok(Err(OpenError::Unsupported)) => {
                *slot = ChannelState::Unsupported;
                Ok(None)
            }
            Ok(Err(OpenError::Failed)) | Err(_) => {
                *slot = ChannelState::Empty;
                Err(NoChannel)
            }
        }
    }
}

fn take_number(headers: &mut HeaderMap, name: &str) -> Option<u64> {
    headers.remove(name)?.to_str().ok()?.parse().ok()
}
