//! One output stream on its way to a client.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use isopod_positions::Slot;
use isopod_wire::delivery::Report;

use super::channel::ReportChannel;
use super::outbox::{Outbox, Released};

/// A live client acknowledges within a fraction of this time.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// At this number of marks, the acknowledged ones are removed. `MAX_MARKS` is the limit.
const MARKS: usize = 64;
const MAX_MARKS: usize = 4096;

/// The delivery state of one stream. It is dropped after the stream and all its frames, and then sends a last report.
#[derive(Debug)]
pub(crate) struct StreamDelivery {
    channel: Arc<ReportChannel>,
    stream: u64,
    /// Its slot in the memory shared with the guest.
    slot: Option<Slot>,
    outbox: Arc<Outbox>,
    /// Written by the client's connection at each flush.
    sent: Mutex<Sent>,
}

#[derive(Debug, Default)]
struct Sent {
    /// Bytes of the body that were sent.
    bytes: u64,
    /// Bytes that were reported to the guest.
    reported: u64,
    /// Bytes that were handed to HTTP.
    handed_out: u64,
    /// Bytes of the body that are known to have arrived.
    arrived: u64,
    /// What was sent after that, in order.
    marks: VecDeque<Mark>,
}

/// Once the connection's first `written` bytes have arrived, so have the first `bytes` of the body.
#[derive(Clone, Copy, Debug)]
struct Mark {
    written: u64,
    bytes: u64,
    since: Instant,
}

impl StreamDelivery {
    pub(super) fn new(channel: Arc<ReportChannel>, stream: u64, slot: Option<Slot>, outbox: Arc<Outbox>) -> Self {
        Self { channel, stream, slot, outbox, sent: Mutex::default() }
    }

    /// Records that the first `bytes` of the body were sent, as part of the first `written` bytes of the connection.
    pub(super) fn sent(&self, bytes: u64, written: u64) {
        let mut sent = self.state();
        sent.bytes = bytes;
        sent.add(Mark { written, bytes, since: Instant::now() });
        if sent.marks.len() >= MARKS {
            sent.acknowledge(self.outbox.connection_state().acknowledged);
        }
        self.report(&mut sent, bytes);
    }

    fn hand_out(&self, end: u64) {
        self.state().handed_out = end;
    }

    /// Reports what was handed out, right before it is written.
    pub(super) fn announce(&self) {
        let mut sent = self.state();
        let bytes = sent.handed_out;
        self.report(&mut sent, bytes);
    }

    /// Retracts what was announced, because the write has to wait.
    pub(super) fn retract(&self) {
        let mut sent = self.state();
        let bytes = sent.bytes;
        self.report(&mut sent, bytes);
    }

    /// Retracts what has not arrived, if the client is gone or has been silent for too long.
    pub(super) fn take_back_lost(&self) {
        let connection = self.outbox.connection_state();
        let mut sent = self.state();
        sent.acknowledge(connection.acknowledged);
        let silent = sent.marks.front().is_some_and(|mark| mark.since.elapsed() > MAX_SILENCE);
        let arrived = sent.arrived;
        if connection.closed || silent {
            self.report(&mut sent, arrived);
        }
    }

    fn report(&self, sent: &mut Sent, bytes: u64) {
        if std::mem::replace(&mut sent.reported, bytes) == bytes {
            return;
        }
        match self.slot {
            Some(slot) => self.channel.set_position(slot, bytes),
            None => self.channel.report(Report { stream: self.stream, bytes, last: false }),
        }
    }

    fn state(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamDelivery {
    fn drop(&mut self) {
        let connection = self.outbox.connection_state();
        let mut sent = self.state();
        sent.acknowledge(connection.acknowledged);
        // A client that is still connected will receive what it has not acknowledged yet.
        let bytes = if connection.closed { sent.arrived } else { sent.bytes };
        drop(sent);
        self.channel.report(Report { stream: self.stream, bytes, last: true });
    }
}

impl Sent {
    fn add(&mut self, mark: Mark) {
        if self.marks.len() >= MAX_MARKS {
            self.marks.pop_back();
        }
        self.marks.push_back(mark);
    }

    fn acknowledge(&mut self, acknowledged: u64) {
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.written <= acknowledged) {
            self.arrived = mark.bytes;
        }
    }
}

/// A body whose frames are tracked if there is a delivery.
pub(crate) struct TrackedBody<B> {
    inner: B,
    delivery: Option<Arc<StreamDelivery>>,
    length: u64,
}

impl<B> TrackedBody<B> {
    pub(crate) fn new(inner: B, delivery: Option<Arc<StreamDelivery>>) -> Self {
        Self { inner, delivery, length: 0 }
    }

    fn track(&mut self, data: Bytes) -> Bytes {
        let Some(delivery) = &self.delivery else { return data };
        self.length += data.len() as u64;
        delivery.hand_out(self.length);
        let written = delivery.outbox.written() + data.len() as u64;
        Bytes::from_owner(TrackedData { data, stream: Arc::clone(delivery), end: self.length, written })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.inner)
            .poll_frame(context)
            .map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(|data| self.track(data)))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Bytes that report when HTTP has dropped them.
struct TrackedData {
    data: Bytes,
    stream: Arc<StreamDelivery>,
    end: u64,
    written: u64,
}

impl AsRef<[u8]> for TrackedData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for TrackedData {
    fn drop(&mut self) {
        let stream = Arc::clone(&self.stream);
        stream.outbox.clone().release(Released { stream, end: self.end, written: self.written });
    }
}
