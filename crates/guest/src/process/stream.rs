//! `process.Process/Connect`, and the stream of events that it shares with `Start`.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use isopod_wire::rpc::process::ConnectRequest;
use tokio::time::Instant;

use crate::deadline::at;
use crate::http::{Reply, stream_body};
use crate::process::output::{Overtaken, ReaderId, Source};
use crate::process::{Ending, Process, events};
use crate::rpc::{Call, Code, Codec, RpcError, end_frame, stream_reply};

/// How much output goes into one write to the client.
const BATCH: usize = 256 << 10;

/// Envelopes and wrapping of the events of one batch.
const FRAMES_OVERHEAD: usize = 2048;

/// Streams the rest of a process's output and its end.
pub(crate) async fn connect(call: Call, request: ConnectRequest) -> Result<Reply, RpcError> {
    let process = call.guest.processes.live_or_ended(&request.process)?;
    Ok(EventStream::new(&call, process, call.deadline).into_reply())
}

/// A reader of one process, and what it still has to tell its client.
#[derive(Debug)]
pub(crate) struct EventStream {
    process: Arc<Process>,
    reader: ReaderId,
    codec: Codec,
    keepalive: Duration,
    /// When this stream ends whatever the process does.
    deadline: Option<Instant>,
    started: bool,
    ended: bool,
    /// Room for the next frames: what was sent is filled again once it is gone.
    buffer: BytesMut,
}

impl EventStream {
    pub(crate) fn new(call: &Call, process: Arc<Process>, deadline: Option<Instant>) -> Self {
        let reader = process.state().output.attach();
        Self {
            process,
            reader,
            codec: call.codec,
            keepalive: call.keepalive,
            deadline,
            started: false,
            ended: false,
            buffer: BytesMut::new(),
        }
    }

    pub(crate) fn into_reply(self) -> Reply {
        let codec = self.codec;
        let body = stream_body(self, |mut stream| async move {
            let bytes = stream.next().await?;
            Some((Ok(bytes), stream))
        });
        stream_reply(codec, body)
    }

    /// The next frames; none after the last.
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
            // A stream that waits keeps no memory.
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
        self.buffer = out;
        Some(frames)
    }

    /// Takes what is there now: output, else the end.
    fn take(&mut self, out: &mut BytesMut) {
        let mut state = self.process.state();
        let codec = self.codec;
        let piece = if self.process.input.is_terminal() { Source::Pty } else { Source::Stdout };
        let waiting = state.output.waiting(self.reader).min(BATCH);
        if waiting > 0 {
            out.reserve(waiting / 3 * 4 + FRAMES_OVERHEAD);
        }
        let read = state.output.read(self.reader, events::longest_piece(piece), BATCH, |source, data| {
            events::put_output(codec, source, data, out);
        });
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
        // A pump that waited for this reader has to look again.
        self.process.room.notify_waiters();
    }
}
