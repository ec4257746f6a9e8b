//! Reports of the edge about output streams: how much of each stream has reached its client.
//!
//! A channel is one connection from the edge, which carries its reports, and memory that the edge shares with it, which holds
//! positions. The streams that name a channel belong to it. Once it closes, nothing more follows: the last position of a
//! stream says what its client has received.
//!
//! No task waits for reports. The guest reads them when it needs them: before it hands out more of a stream, and before a
//! stream starts. A report that woke the guest would often take the CPU from the edge between the report and the write that
//! it announces. If the server is killed at that moment, an event is lost.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use isopod_positions::{Positions, SLOTS, Slot};
use isopod_wire::delivery::{CHANNEL_HEADER, PROTOCOL, Report};

use crate::http::{Attached, HostConnection, HttpError, Reply, check_host, status_reply};
use crate::process::output::ReaderId;
use crate::process::{Process, Processes};

/// How long a call waits for the reports that the edge sent before it.
const REPORTS_TIMEOUT: Duration = Duration::from_secs(2);
const REPORTS_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The open channels.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    channels: HashMap<u64, Channel>,
    /// Numbers channels and streams.
    last_number: u64,
}

#[derive(Debug, Default)]
struct Channel {
    streams: HashMap<u64, Tracked>,
    /// How many reports have arrived.
    received: u64,
    /// Non-blocking. `None` until the connection is upgraded.
    connection: Option<UnixStream>,
    /// The start of an incomplete report.
    partial: Vec<u8>,
    /// `None` if the edge shares no memory.
    memory: Option<Memory>,
}

/// The memory into which the edge stores positions.
#[derive(Debug)]
struct Memory {
    positions: Positions,
    free: Vec<Slot>,
}

/// A reader whose delivery the edge reports.
#[derive(Debug)]
struct Tracked {
    process: Arc<Process>,
    reader: ReaderId,
    /// Where the edge stores its position.
    slot: Option<Slot>,
    /// The position that was last seen there.
    seen: u64,
}

/// A stream whose delivery the edge reports, as the guest names it to the edge.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamName {
    pub(super) number: u64,
    pub(super) slot: Option<Slot>,
}

impl Deliveries {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, memory: Option<Memory>) -> u64 {
        let mut tables = self.tables();
        let channel = tables.next_number();
        tables.channels.insert(channel, Channel { memory, ..Channel::default() });
        channel
    }

    /// Attaches a reader whose delivery is reported on this channel. Also returns the name of its stream. `None` if there is no
    /// such channel.
    pub(super) fn attach(&self, channel: u64, process: &Arc<Process>) -> Option<(ReaderId, StreamName)> {
        let mut tables = self.tables();
        let number = tables.next_number();
        let channel = tables.channels.get_mut(&channel)?;
        let slot = channel.memory.as_mut().and_then(Memory::take_slot);
        let reader = process.state().output.attach_tracked();
        channel.streams.insert(number, Tracked { process: Arc::clone(process), reader, slot, seen: 0 });
        Some((reader, StreamName { number, slot }))
    }

    /// Waits until this many reports have arrived on the channel, or until a timeout.
    pub(super) async fn wait_for_reports(&self, channel: u64, reports: u64) {
        let started = Instant::now();
        loop {
            self.read_reports();
            let received = self.tables().channels.get(&channel).map(|channel| channel.received);
            // Without the reports a client may get some output twice. That is better than waiting for a broken connection.
            if received.is_none_or(|received| received >= reports) || started.elapsed() > REPORTS_TIMEOUT {
                return;
            }
            tokio::time::sleep(REPORTS_POLL_INTERVAL).await;
        }
    }

    /// Reads the reports that have arrived on all channels.
    pub(super) fn read_reports(&self) {
        self.tables().channels.retain(|_, channel| channel.read());
    }

    /// Reads the reports that have arrived on this channel.
    pub(super) fn read_reports_of(&self, channel: u64) {
        let mut tables = self.tables();
        if tables.channels.get_mut(&channel).is_some_and(|channel| !channel.read()) {
            tables.channels.remove(&channel);
        }
    }

    fn connected(&self, channel: u64, connection: UnixStream, first: &[u8]) {
        if let Some(channel) = self.tables().channels.get_mut(&channel) {
            channel.partial.extend(first);
            channel.connection = Some(connection);
        }
    }

    fn close(&self, channel: u64) {
        self.tables().channels.remove(&channel);
    }
}

impl Channel {
    /// Applies the reports that have arrived. Returns false once the channel is closed.
    fn read(&mut self) -> bool {
        let Some(mut connection) = self.connection.take() else { return true };
        let mut buffer = [0; 64 * Report::LEN];
        let open = loop {
            match connection.read(&mut buffer) {
                Ok(0) => break false,
                Ok(length) => self.partial.extend(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.kind() == io::ErrorKind::WouldBlock,
            }
            self.apply_complete();
        };
        self.apply_complete();
        // After the end of the connection was seen: an edge that is gone stores nothing more.
        self.read_positions();
        self.connection = Some(connection);
        open
    }

    fn read_positions(&mut self) {
        let Some(memory) = &self.memory else { return };
        for tracked in self.streams.values_mut() {
            let Some(bytes) = tracked.slot.map(|slot| memory.positions.get(slot)) else { continue };
            if std::mem::replace(&mut tracked.seen, bytes) != bytes {
                tracked.process.state().output.report(tracked.reader, bytes);
            }
        }
    }

    fn apply_complete(&mut self) {
        while let Some((report, rest)) = self.partial.split_first_chunk() {
            let (report, rest) = (Report::decode(report), rest.to_vec());
            self.partial = rest;
            self.apply(report);
        }
    }

    fn apply(&mut self, report: Report) {
        self.received += 1;
        if let Some(tracked) = self.streams.get(&report.stream) {
            tracked.process.state().output.report(tracked.reader, report.bytes);
        }
        if report.last {
            let slot = self.streams.remove(&report.stream).and_then(|tracked| tracked.slot);
            self.memory.iter_mut().zip(slot).for_each(|(memory, slot)| memory.free.push(slot));
        }
    }
}

impl Memory {
    fn open(descriptor: OwnedFd) -> io::Result<Self> {
        let free = (0..SLOTS as u64).rev().filter_map(Slot::new).collect();
        Ok(Self { positions: Positions::open(descriptor)?, free })
    }

    /// A place that holds 0: the edge stores nothing there before it knows whose it is, nor after the last report.
    fn take_slot(&mut self) -> Option<Slot> {
        let slot = self.free.pop()?;
        self.positions.set(slot, 0);
        Some(slot)
    }
}

impl Tables {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// No more reports about this reader will come.
impl Drop for Tracked {
    fn drop(&mut self) {
        self.process.state().output.settle(self.reader);
    }
}

/// Opens a channel: from now on the connection carries reports.
pub(crate) fn open_channel(processes: &Processes, request: Request<Incoming>) -> Result<Reply, HttpError> {
    check_host(&request)?;
    if request.headers().get(header::UPGRADE).is_none_or(|wanted| wanted != PROTOCOL) {
        return Err(HttpError::new(StatusCode::UPGRADE_REQUIRED, format!("upgrade to {PROTOCOL} to send reports")));
    }
    let deliveries = Arc::clone(&processes.deliveries);
    let attached = request.extensions().get().and_then(Attached::take);
    // Without usable memory the edge sends reports.
    let channel = deliveries.open(attached.and_then(|descriptor| Memory::open(descriptor).ok()));
    tokio::spawn(async move {
        match upgrade(request).await {
            Some((connection, first)) => deliveries.connected(channel, connection, &first),
            None => deliveries.close(channel),
        }
    });
    let mut reply = status_reply(StatusCode::SWITCHING_PROTOCOLS);
    let headers = reply.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    headers.insert(CHANNEL_HEADER, channel.into());
    Ok(reply)
}

/// The upgraded connection, and the bytes that have already arrived on it.
async fn upgrade(request: Request<Incoming>) -> Option<(UnixStream, Bytes)> {
    let upgraded = hyper::upgrade::on(request).await.ok()?;
    let parts = upgraded.downcast::<TokioIo<HostConnection>>().ok()?;
    // The socket stays non-blocking, and the runtime stops watching it.
    Some((parts.io.into_inner().into_stream().into_std().ok()?, parts.read_buf))
}
