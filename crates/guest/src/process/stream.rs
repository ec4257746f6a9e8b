//! `Connect`, and the stream of events that it shares with `Start`.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use isopod_wire::delivery::{SLOT_HEADER, STREAM_HEADER};
use isopod_wire::rpc::process::ConnectRequest;
use tokio::time::Instant;

use crate::deadline::at;
use crate::http::{Reply, stream_body};
use crate::process::delivery::StreamName;
use crate::process::output::{Mark, Overtaken, ReaderId};
use crate::process::{Deliveries, Ending, Process, Processes, events};
use crate::rpc::{Call, Code, Codec, RpcError, end_frame, stream_reply};
use crate::stdio::Source;

/// How much output goes into one write to the client.
const MAX_BATCH: usize = 256 << 10;

/// Room for the envelopes of one batch.
const FRAMES_OVERHEAD: usize = 2048;

/// Streams the rest of a process's output and its result.
pub(crate) async fn connect(processes: &Processes, call: Call, request: ConnectRequest) -> Result<Reply, RpcError> {
    match call.delivery {
        Some(channel) => processes.deliveries.wait_for_reports(channel, call.reports).await,
        None => processes.deliveries.read_reports(),
    }
    let process = processes.live_or_ended(&request.process)?;
    Ok(EventStream::new(&processes.deliveries, &call, process, call.deadline).into_reply())
}

/// A reader of one process, which encodes the events for its client.
#[derive(Debug)]
pub(crate) struct EventStream {
    process: Arc<Process>,
    reader: ReaderId,
    codec: Codec,
    keepalive: Duration,
    /// When this stream ends, whatever the process does.
    deadline: Option<Instant>,
    started: bool,
    ended: bool,
    /// Set if the edge reports what its client has received.
    tracking: Option<StreamTracking>,
    /// The length of the body so far.
    length: u64,
    /// The buffer for the next frames; its memory is reused once the frames are sent.
    buffer: BytesMut,
}

/// Where the reports about a stream arrive.
#[derive(Debug)]
struct StreamTracking {
    deliveries: Arc<Deliveries>,
    channel: u64,
    name: StreamName,
}

impl EventStream {
    pub(crate) fn new(
        deliveries: &Arc<Deliveries>,
        call: &Call,
        process: Arc<Process>,
        deadline: Option<Instant>,
    ) -> Self {
        let tracked = call.delivery.and_then(|channel| deliveries.attach(channel, &process));
        let (reader, tracking) = match (tracked, call.delivery) {
            (Some((reader, name)), Some(channel)) => {
                (reader, Some(StreamTracking { deliveries: Arc::clone(deliveries), channel, name }))
            }
            // The server died after it had sent the request. Whoever connects next gets what this stream carries.
            (None, Some(_)) => (process.state().output.attach_undelivered(), None),
            _ => (process.state().output.attach(), None),
        };
        Self {
            process,
            reader,
            tracking,
            length: 0,
            codec: call.codec,
            keepalive: call.keepalive,
            deadline,
            started: false,
            ended: false,
            buffer: BytesMut::new(),
        }
    }

    pub(crate) fn into_reply(self) -> Reply {
        let (codec, name) = (self.codec, self.tracking.as_ref().map(|tracking| tracking.name));
        let body = stream_body(self, |mut stream| async move {
            let bytes = stream.next().await?;
            Some((Ok(bytes), stream))
        });
        let mut reply = stream_reply(codec, body);
        if let Some(StreamName { number, slot }) = name {
            reply.headers_mut().insert(STREAM_HEADER, number.into());
            slot.map(|slot| reply.headers_mut().insert(SLOT_HEADER, slot.number().into()));
        }
        reply
    }

    /// The next frames. `None` after the last ones.
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut out = std::mem::take(&mut self.buffer);
        if !self.started {
            self.started = true;
            events::put_start(self.codec, self.process.pid_number(), &mut out);
        }
        let quiet_until = Instant::now() + self.keepalive;
        let process = Arc::clone(&self.process);
        loop {
            let changed = process.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.take(&mut out);
            if !out.is_empty() {
                break;
            }
            // A waiting stream holds no memory.
            out = BytesMut::new();
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(quiet_until) => events::put_keepalive(self.codec, &mut out),
                () = at(self.deadline) => self.fail(&RpcError::deadline_exceeded(), &mut out),
            }
            if !out.is_empty() {
                break;
            }
        }
        let frames = out.split().freeze();
        self.length += frames.len() as u64;
        self.buffer = out;
        Some(frames)
    }

    /// Takes the available output, or else the result.
    fn take(&mut self, out: &mut BytesMut) {
        if let Some(tracking) = &self.tracking {
            tracking.deliveries.read_reports_of(tracking.channel);
        }
        let mut state = self.process.state();
        let codec = self.codec;
        let piece = if self.process.input.is_terminal() { Source::Pty } else { Source::Stdout };
        let waiting = state.output.waiting(self.reader).min(MAX_BATCH);
        if waiting > 0 {
            out.reserve(waiting / 3 * 4 + FRAMES_OVERHEAD);
        }
        let mut marks = Vec::new();
        let read = state.output.read(self.reader, events::max_chunk(piece), MAX_BATCH, |source, data, position| {
            events::put_output(codec, source, data, out);
            marks.push(Mark { bytes: self.length + out.len() as u64, position });
        });
        state.output.mark(self.reader, marks);
        let ending = state.ending.clone();
        drop(state);
        match (read, ending) {
            (Err(Overtaken { skipped }), _) => {
                let message = format!("output was read too slowly: {skipped} bytes were skipped");
                self.fail(&RpcError::new(Code::ResourceExhausted, message), out);
            }
            (Ok(0), Some(Ending::Exited(end))) => {
                events::put_end(codec, &end, out);
                out.extend_from_slice(&end_frame(None));
                self.ended = true;
            }
            (Ok(0), Some(Ending::DeadlineExceeded)) => self.fail(&RpcError::deadline_exceeded(), out),
            (Ok(0), None) => {}
            (Ok(_), _) => self.process.room.notify_waiters(),
        }
    }

    fn fail(&mut self, error: &RpcError, out: &mut BytesMut) {
        out.extend_from_slice(&end_frame(Some(error)));
        self.ended = true;
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.process.state().output.detach(self.reader);
        // The pump may have waited for this reader.
        self.process.room.notify_waiters();
    }
}
