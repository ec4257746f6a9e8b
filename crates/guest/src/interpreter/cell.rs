//! Runs one cell in a kernel, from the command to the last line.
//!
//! The client gets events in the order in which the kernel produced them: what it printed before a line of its stream comes
//! before that line. A slow client holds the kernel back. If the client disconnects, the guest interrupts the cell and
//! discards the rest of its output, so that the context can be used again.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::events::{Kind, Source, kind};
use super::kernel::{Command, Kernel, Ready};
use super::output::{MAX_PRINTED, Output};
use crate::deadline::at;
use crate::gate::Gate;

/// The size of one read of a pipe, and the most text in one event.
const READ_SIZE: usize = 256 << 10;
/// Longer lines are passed on as they are; shorter ones are copied into one chunk.
const SMALL_LINE: usize = 16 << 10;
/// How long the guest waits for the start of a cell before it interrupts the kernel anyway.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a kernel may take from announcing a cell to running its code. An earlier interrupt would be lost.
const START_GRACE: Duration = Duration::from_millis(50);
/// How often the guest wakes the kernel after an interrupt, in case the signal came just before a blocking call.
const MAX_NUDGES: u32 = 3;
const NUDGE_INTERVAL: Duration = Duration::from_millis(200);
/// How often the guest checks whether the kernel is stopped.
const STOP_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How a cell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellEnd {
    Ended,
    /// The kernel is gone, and has run nothing of the cell.
    NotBegun,
    /// The kernel is gone.
    Died,
    /// The kernel sent a line that is too long.
    LineTooLong,
}

/// Gives a cell to a kernel. Returns false if the kernel is gone.
pub(super) async fn send(kernel: &mut Kernel, command: &Command<'_>) -> bool {
    kernel.link().set_in_cell(true);
    kernel.send(command).await.is_ok()
}

/// Runs a cell that was sent to its end. If the future is dropped, the kernel is in the middle of the cell and cannot be used
/// any more.
pub(super) async fn run(gate: &Gate, kernel: &mut Kernel, client: &mpsc::Sender<Bytes>) -> CellEnd {
    Cell::new(gate, kernel, Some(client)).run().await
}

/// Waits for the end of a cell whose client was a client of an earlier guest. Nobody gets its output.
pub(super) async fn finish(gate: &Gate, kernel: &mut Kernel) -> CellEnd {
    let mut cell = Cell::new(gate, kernel, None);
    cell.begun = Some(Instant::now());
    cell.run().await
}

struct Cell<'a> {
    gate: &'a Gate,
    kernel: &'a mut Kernel,
    /// `None` after it has disconnected.
    client: Option<&'a mpsc::Sender<Bytes>>,
    output: Output,
    buffer: Vec<u8>,
    /// When the kernel announced the cell.
    begun: Option<Instant>,
    /// When to interrupt the kernel.
    interrupt_at: Option<Instant>,
    nudges_left: u32,
    nudge_at: Option<Instant>,
    /// When to check whether the kernel is stopped.
    next_stop_check: Instant,
    /// Chunks of whole lines to be sent; `events` follows them.
    done: Vec<Bytes>,
    events: BytesMut,
}

impl<'a> Cell<'a> {
    fn new(gate: &'a Gate, kernel: &'a mut Kernel, client: Option<&'a mpsc::Sender<Bytes>>) -> Self {
        Self {
            gate,
            kernel,
            client,
            output: Output::new(MAX_PRINTED),
            buffer: vec![0; READ_SIZE],
            begun: None,
            interrupt_at: None,
            nudges_left: 0,
            nudge_at: None,
            next_stop_check: Instant::now() + STOP_CHECK_INTERVAL,
            done: Vec::new(),
            events: BytesMut::new(),
        }
    }

    async fn run(&mut self) -> CellEnd {
        let end = self.until_end().await;
        self.kernel.lines().shrink();
        self.kernel.link().set_in_cell(end != CellEnd::Ended);
        end
    }

    async fn until_end(&mut self) -> CellEnd {
        loop {
            let ready = tokio::select! {
                biased;
                () = until_closed(self.client) => {
                    self.client_gone();
                    continue;
                }
                () = at(self.interrupt_at) => {
                    let _pass = self.gate.pass().await;
                    self.interrupt();
                    continue;
                }
                () = at(self.nudge_at) => {
                    let _pass = self.gate.pass().await;
                    self.nudge();
                    continue;
                }
                () = at(Some(self.next_stop_check)) => {
                    let _pass = self.gate.pass().await;
                    self.check_stopped();
                    continue;
                }
                ready = self.kernel.ready() => ready,
            };
            let end = self.take(ready);
            self.deliver().await;
            if let Some(end) = end {
                return end;
            }
        }
    }

    fn take(&mut self, ready: Ready) -> Option<CellEnd> {
        match ready {
            Ready::Stream => {
                let open = self.kernel.fill();
                self.take_lines().or_else(|| (!open).then(|| self.kernel_gone()))
            }
            Ready::Output => {
                for source in [Source::Stdout, Source::Stderr] {
                    self.take_output(source);
                }
                None
            }
            // The kernel's children may hold the stream open.
            Ready::Exited => {
                self.kernel.fill();
                self.take_lines().or_else(|| Some(self.kernel_gone()))
            }
        }
    }

    fn take_lines(&mut self) -> Option<CellEnd> {
        let mut drained = false;
        loop {
            let Some(line) = self.kernel.lines().take() else { break };
            let kind = kind(line.trim_ascii_end());
            if matches!(kind, Kind::Other | Kind::End) && !std::mem::replace(&mut drained, true) {
                self.drain();
            }
            match kind {
                Kind::Count => self.begin(),
                Kind::End => self.output.finish(&mut self.events),
                Kind::Other => {}
                Kind::Malformed => continue,
            }
            self.put_line(line);
            if kind == Kind::End {
                return Some(CellEnd::Ended);
            }
        }
        self.kernel.lines().is_too_long().then_some(CellEnd::LineTooLong)
    }

    fn put_line(&mut self, line: Bytes) {
        if line.len() <= SMALL_LINE {
            self.events.extend_from_slice(&line);
            return;
        }
        self.done.push(self.events.split().freeze());
        self.done.push(line);
    }

    /// Takes what has been printed so far and no more: a child of the kernel may print forever.
    fn drain(&mut self) {
        for source in [Source::Stdout, Source::Stderr] {
            let mut left = self.kernel.waiting(source);
            while left > 0 {
                match self.take_output(source) {
                    0 => break,
                    taken => left = left.saturating_sub(taken),
                }
            }
        }
    }

    fn take_output(&mut self, source: Source) -> usize {
        let Some(data) = self.kernel.read(source, &mut self.buffer) else { return 0 };
        if self.client.is_some() {
            self.output.put(source, data, &mut self.events);
        }
        data.len()
    }

    fn kernel_gone(&mut self) -> CellEnd {
        if self.begun.is_none() {
            return CellEnd::NotBegun;
        }
        self.drain();
        self.output.finish(&mut self.events);
        CellEnd::Died
    }

    fn begin(&mut self) {
        let now = Instant::now();
        self.begun = Some(now);
        if self.interrupt_at.is_some() {
            self.interrupt_at = Some(now + START_GRACE);
        }
    }

    /// The client has disconnected. A cell that has been running for a while is interrupted at once.
    fn client_gone(&mut self) {
        self.client = None;
        let early = self.begun.map(|begun| begun + START_GRACE);
        self.interrupt_at = Some(early.unwrap_or_else(|| Instant::now() + BEGIN_TIMEOUT));
    }

    fn interrupt(&mut self) {
        self.interrupt_at = None;
        self.kernel.interrupt();
        self.nudges_left = MAX_NUDGES;
        self.nudge_at = Some(Instant::now() + NUDGE_INTERVAL);
    }

    /// Resumes a kernel that stopped itself. Nothing else would, and its context would wait forever.
    fn check_stopped(&mut self) {
        if self.kernel.is_stopped() {
            self.kernel.resume();
        }
        self.next_stop_check = Instant::now() + STOP_CHECK_INTERVAL;
    }

    fn nudge(&mut self) {
        self.kernel.nudge();
        self.nudges_left -= 1;
        self.nudge_at = (self.nudges_left > 0).then(|| Instant::now() + NUDGE_INTERVAL);
    }

    async fn deliver(&mut self) {
        let mut lines = std::mem::take(&mut self.done);
        lines.push(self.events.split().freeze());
        for lines in lines.into_iter().filter(|lines| !lines.is_empty()) {
            if let Some(client) = self.client
                && client.send(lines).await.is_err()
            {
                self.client_gone();
            }
        }
    }
}

async fn until_closed(client: Option<&mpsc::Sender<Bytes>>) {
    match client {
        Some(client) => client.closed().await,
        None => std::future::pending().await,
    }
}
