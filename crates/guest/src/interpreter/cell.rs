//! One cell: an execution from its order to its last line.
//!
//! Events go to the client in the order in which the kernel made them: what it printed before a line of its stream is
//! sent before that line. A slow client holds the kernel back. A client that goes away interrupts the cell, whose rest
//! is then read and thrown away, so that the context can be used again.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::events::{Kind, Source, kind};
use super::kernel::{Kernel, Order, Ready};
use super::output::{MAX_PRINTED, Output};
use crate::deadline::at;

/// One read of a pipe, and the most text in one event.
const READ_SIZE: usize = 256 << 10;
/// Longer lines are handed on as they are instead of being copied together with others.
const SMALL_LINE: usize = 16 << 10;
/// A kernel that has not begun the cell after this time is interrupted all the same.
const BEGIN_PATIENCE: Duration = Duration::from_secs(1);
/// How long a kernel may take from saying that it begins a cell to its code. An interrupt before that would be lost.
const BEGIN_GRACE: Duration = Duration::from_millis(50);
/// After an interrupt the kernel is woken this often, should it have noted it just before it began to wait for something.
const NUDGES: u32 = 3;
const NUDGE_EVERY: Duration = Duration::from_millis(200);

/// How a cell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Ended,
    /// The kernel is gone, and ran nothing of the cell.
    NotBegun,
    /// The kernel is gone.
    Died,
    /// The kernel sent a line without end.
    Endless,
}

/// Runs a cell to its end. When the future is dropped the kernel is in the middle of something and of no use.
pub(super) async fn run(kernel: &mut Kernel, order: &Order<'_>, client: &mpsc::Sender<Bytes>) -> Finish {
    let mut cell = Cell {
        kernel,
        client: Some(client),
        output: Output::new(MAX_PRINTED),
        buffer: vec![0; READ_SIZE],
        begun: None,
        interrupt_at: None,
        nudges_left: 0,
        nudge_at: None,
        done: Vec::new(),
        events: BytesMut::new(),
    };
    if cell.kernel.send(order).await.is_err() {
        return Finish::NotBegun;
    }
    let finish = cell.until_end().await;
    cell.kernel.lines().shrink();
    finish
}

struct Cell<'a> {
    kernel: &'a mut Kernel,
    /// None after it went away.
    client: Option<&'a mpsc::Sender<Bytes>>,
    output: Output,
    buffer: Vec<u8>,
    /// When the kernel said that it began.
    begun: Option<Instant>,
    /// When to interrupt it.
    interrupt_at: Option<Instant>,
    nudges_left: u32,
    nudge_at: Option<Instant>,
    /// Whole lines to be sent, and after them more lines.
    done: Vec<Bytes>,
    events: BytesMut,
}

impl Cell<'_> {
    async fn until_end(&mut self) -> Finish {
        loop {
            let ready = tokio::select! {
                biased;
                () = gone(self.client) => {
                    self.leave();
                    continue;
                }
                () = at(self.interrupt_at) => {
                    self.interrupt();
                    continue;
                }
                () = at(self.nudge_at) => {
                    self.nudge();
                    continue;
                }
                ready = self.kernel.ready() => ready,
            };
            let finish = self.take(ready);
            self.deliver().await;
            if let Some(finish) = finish {
                return finish;
            }
        }
    }

    fn take(&mut self, ready: Ready) -> Option<Finish> {
        match ready {
            Ready::Stream => {
                let open = self.kernel.fill();
                self.take_lines().or_else(|| (!open).then(|| self.die()))
            }
            Ready::Output => {
                for source in [Source::Stdout, Source::Stderr] {
                    self.take_output(source);
                }
                None
            }
            // Its children may hold the stream open.
            Ready::Exited => {
                self.kernel.fill();
                self.take_lines().or_else(|| Some(self.die()))
            }
        }
    }

    fn take_lines(&mut self) -> Option<Finish> {
        let mut drained = false;
        while let Some(line) = self.kernel.lines().take() {
            let kind = kind(line.trim_ascii_end());
            if matches!(kind, Kind::Other | Kind::End) && !std::mem::replace(&mut drained, true) {
                self.drain();
            }
            match kind {
                Kind::Count => self.begin(),
                Kind::End => self.output.finish(&mut self.events),
                Kind::Other => {}
                Kind::Nonsense => continue,
            }
            self.put_line(line);
            if kind == Kind::End {
                return Some(Finish::Ended);
            }
        }
        self.kernel.lines().is_too_long().then_some(Finish::Endless)
    }

    fn put_line(&mut self, line: Bytes) {
        if line.len() <= SMALL_LINE {
            self.events.extend_from_slice(&line);
            return;
        }
        self.done.push(self.events.split().freeze());
        self.done.push(line);
    }

    /// Takes what was printed up to now and no more: a child of the kernel may print for ever.
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

    fn die(&mut self) -> Finish {
        if self.begun.is_none() {
            return Finish::NotBegun;
        }
        self.drain();
        self.output.finish(&mut self.events);
        Finish::Died
    }

    fn begin(&mut self) {
        let now = Instant::now();
        self.begun = Some(now);
        if self.interrupt_at.is_some() {
            self.interrupt_at = Some(now + BEGIN_GRACE);
        }
    }

    /// The client went away. A cell that has been running for a while is interrupted at once.
    fn leave(&mut self) {
        self.client = None;
        let early = self.begun.map(|begun| begun + BEGIN_GRACE);
        self.interrupt_at = Some(early.unwrap_or_else(|| Instant::now() + BEGIN_PATIENCE));
    }

    fn interrupt(&mut self) {
        self.interrupt_at = None;
        self.kernel.interrupt();
        self.nudges_left = NUDGES;
        self.nudge_at = Some(Instant::now() + NUDGE_EVERY);
    }

    fn nudge(&mut self) {
        self.kernel.nudge();
        self.nudges_left -= 1;
        self.nudge_at = (self.nudges_left > 0).then(|| Instant::now() + NUDGE_EVERY);
    }

    async fn deliver(&mut self) {
        let mut lines = std::mem::take(&mut self.done);
        lines.push(self.events.split().freeze());
        for lines in lines.into_iter().filter(|lines| !lines.is_empty()) {
            if let Some(client) = self.client
                && client.send(lines).await.is_err()
            {
                self.leave();
            }
        }
    }
}

async fn gone(client: Option<&mpsc::Sender<Bytes>>) {
    match client {
        Some(client) => client.closed().await,
        None => std::future::pending().await,
    }
}
