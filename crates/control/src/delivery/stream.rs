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

/// A live client acknowledges within a fraction of this.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// So many marks are kept before the acknowledged ones are looked for, and so many at the most.
const MARKS: usize = 64;
const MAX_MARKS: usize = 4096;

/// What is known of a stream's delivery. When the stream and all its frames are gone, so is this, with a last report.
#[derive(Debug)]
pub(crate) struct StreamDelivery {
    channel: Arc<ReportChannel>,
    stream: u64,
    /// Its place in the memory that the guest shares.
    slot: Option<Slot>,
    outbox: Arc<Outbox>,
    /// Written by the client's connection at each flush.
    sent: Mutex<Sent>,
}

#[derive(Debug, Default)]
struct Sent {
    /// Bytes of the body that were sent.
    bytes: u64,
    /// What the guest was told.
    reported: u64,
    /// What HTTP was handed.
    handed_out: u64,
    /// Bytes of the body that are known to have arrived.
    arrived: u64,
    /// What was sent since then, in order.
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

    /// The body's first `bytes` were sent, as part of the connection's first `written`.
    pub(super) fn sent(&self, bytes: u64, written: u64) {
        let mut sent = self.state();
        sent.bytes = bytes;
        sent.add(Mark { written, bytes, since: Instant::now() });
        if sent.marks.len() >= MARKS {
            sent.acknowledge(self.outbox.line().acknowledged);
        }
        self.report(&mut sent, bytes);
    }

    fn hand_out(&self, end: u64) {
        self.state().handed_out = end;
    }

    /// What was handed out is about to be written.
    pub(super) fn announce(&self) {
        let mut sent = self.state();
        let bytes = sent.handed_out;
        self.report(&mut sent, bytes);
    }

    /// What was announced has to wait.
    pub(super) fn retract(&self) {
        let mut sent = self.state();
        let bytes = sent.bytes;
        self.report(&mut sent, bytes);
    }

    /// Takes back what has not arrived, if the client is gone or has been silent for too long.
    pub(super) fn take_back_lost(&self) {
        let line = self.outbox.line();
        let mut sent = self.state();
        sent.acknowledge(line.acknowledged);
        let silent = sent.marks.front().is_some_and(|mark| mark.since.elapsed() > MAX_SILENCE);
        let arrived = sent.arrived;
        if line.closed || silent {
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
        let line = self.outbox.line();
        let mut sent = self.state();
        sent.acknowledge(line.acknowledged);
        // What a client has not acknowledged yet that is still there will reach it.
        let bytes = if line.closed { sent.arrived } else { sent.bytes };
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

/// A body whose frames are tracked, if anybody asked for that.
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

/// Bytes that tell when HTTP has let go of them.
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
