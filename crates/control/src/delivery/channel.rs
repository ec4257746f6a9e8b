//! The connection that reports to a guest what its clients have received.
//!
//! Positions go into memory shared with the guest, right before the write that they describe; see the parent module. A
//! stream without a slot there gets reports, which the reporting task itself writes at once. Only reports that a slow
//! guest has no room for wait here: the latest one of each stream.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use isopod_positions::{Positions, Slot};
use isopod_wire::delivery::{CHANNEL_HEADER, PATH, PREAMBLE, PROTOCOL, Report};
use isopod_wire::node::{Incarnation, NodeApi, Stream, Target};
use tokio::io::AsyncWrite as _;
use tokio_util::sync::CancellationToken;

use crate::upstream::{CONTROL_HEADER, start_http};

#[derive(Debug)]
pub(super) struct ReportChannel {
    name: HeaderValue,
    /// `None` if the shared memory could not be sent over the connection.
    positions: Option<Positions>,
    /// Locked by the reporting task for the duration of one write.
    writer: Mutex<Writer>,
}

/// Why there is no channel.
#[derive(Debug)]
pub(super) enum OpenError {
    Unsupported,
    Failed,
}

#[derive(Debug)]
struct Writer {
    connection: TokioIo<Upgraded>,
    /// The rest of a partially written report.
    rest: Vec<u8>,
    waiting: BTreeMap<u64, Report>,
    /// The number of reports of which at least a part was written.
    sent: u64,
    /// Whether a task waits for room in the connection.
    blocked: bool,
    broken: bool,
}

impl ReportChannel {
    pub(super) async fn open(
        node: &dyn NodeApi,
        incarnation: &Incarnation,
        gate: &CancellationToken,
    ) -> Result<Self, OpenError> {
        let stream = node.dial(incarnation, Target::Guest).await.map_err(|_| OpenError::Failed)?;
        let positions = attach_memory(&*stream);
        let mut sender = start_http(stream, gate).await.map_err(|_| OpenError::Failed)?;
        let mut response = sender.send_request(opening()).await.map_err(|_| OpenError::Failed)?;
        let name = response.headers().get(CHANNEL_HEADER).cloned();
        let (StatusCode::SWITCHING_PROTOCOLS, Some(name)) = (response.status(), name) else {
            return Err(OpenError::Unsupported);
        };
        let connection = hyper::upgrade::on(&mut response).await.map_err(|_| OpenError::Failed)?;
        let writer = Writer {
            connection: TokioIo::new(connection),
            rest: Vec::new(),
            waiting: BTreeMap::new(),
            sent: 0,
            blocked: false,
            broken: false,
        };
        Ok(Self { name, positions, writer: Mutex::new(writer) })
    }

    pub(super) fn name(&self) -> &HeaderValue {
        &self.name
    }

    pub(super) fn is_broken(&self) -> bool {
        self.writer().broken
    }

    /// How many reports the guest can have received by now.
    pub(super) fn sent(&self) -> u64 {
        self.writer().sent
    }

    /// Stores the position of a stream that has a slot in the shared memory.
    pub(super) fn set_position(&self, slot: Slot, bytes: u64) {
        if let Some(positions) = &self.positions {
            positions.set(slot, bytes);
        }
    }

    pub(super) fn has_positions(&self) -> bool {
        self.positions.is_some()
    }

    pub(super) fn report(self: &Arc<Self>, report: Report) {
        let mut writer = self.writer();
        writer.waiting.insert(report.stream, report);
        if writer.blocked {
            return;
        }
        let pending = writer.write(&mut Context::from_waker(Waker::noop())).is_pending();
        // Without a runtime, the server is being torn down. Nothing can be sent any more.
        if let (true, Ok(runtime)) = (pending, tokio::runtime::Handle::try_current()) {
            writer.blocked = true;
            drop(writer);
            runtime.spawn(wait_for_room(Arc::clone(self)));
        }
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the memory for positions ahead of the request. Without it, the guest gets reports.
fn attach_memory(stream: &dyn Stream) -> Option<Positions> {
    let socket = stream.unix_socket()?;
    let attach = || {
        let (positions, memory) = Positions::create()?;
        Positions::send(socket, PREAMBLE, memory)?;
        Ok::<_, io::Error>(positions)
    };
    attach()
        .inspect_err(|error| {
            tracing::debug!(
                error = isopod_wire::error_chain(error),
                "could not share memory with a guest; falling back to reports"
            )
        })
        .ok()
}

fn opening() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(PATH);
    let headers = request.headers_mut();
    headers.insert(header::HOST, HeaderValue::from_static("localhost"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    headers.insert(CONTROL_HEADER, HeaderValue::from_static("1"));
    request
}

async fn wait_for_room(channel: Arc<ReportChannel>) {
    std::future::poll_fn(|context| {
        let mut writer = channel.writer();
        let written = writer.write(context);
        writer.blocked = written.is_pending();
        written
    })
    .await;
}

impl Writer {
    /// Writes everything, or as much as the connection has room for.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.broken {
                self.waiting.clear();
                return Poll::Ready(());
            }
            if self.rest.is_empty() {
                let Some((_, report)) = self.waiting.pop_first() else { return Poll::Ready(()) };
                self.rest.extend(report.encode());
                self.sent += 1;
            }
            match Pin::new(&mut self.connection).poll_write(context, &self.rest) {
                Poll::Ready(Ok(written @ 1..)) => drop(self.rest.drain(..written)),
                Poll::Ready(_) => self.broken = true,
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
