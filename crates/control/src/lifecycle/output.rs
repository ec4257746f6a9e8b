//! Copies the output of processes from the guests into the sandboxes' logs.
//!
//! The guest keeps output in a ring buffer until it is fetched: at the interval of the resource samples, before a
//! client reads the log, and before a sandbox is paused or removed. The position is stored beside the lines, so that a
//! new server neither repeats nor skips any. A sandbox that prints nothing and gets no requests is polled less and less
//! often.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use isopod_store::clock::Timestamp;
use isopod_store::{Level, LogLine, OutputPosition, StoreError};
use isopod_wire::SandboxId;

use super::fleet::Fleet;
use super::handle::Life;
use crate::upstream::{Channel, OutputBlock, OutputPage, read_output};

/// How far the output of one life was fetched.
#[derive(Debug)]
pub(crate) struct Output {
    /// Whether a request went to the guest since the last poll.
    asked: AtomicBool,
    /// Locked during a fetch.
    reading: tokio::sync::Mutex<Reading>,
}

#[derive(Debug, Default)]
struct Reading {
    /// The position to fetch from. `None` until it is read from the store.
    position: Option<u64>,
    /// Polls since the last fetch, and how many of them to skip.
    polls: u32,
    skip: u32,
    /// Bytes recorded since the log was last trimmed.
    untrimmed: usize,
}

/// The number of guests that are polled concurrently.
const MAX_CONCURRENT: usize = 8;
/// A guest that does not answer within this time is asked again later.
const FETCH_TIMEOUT: Duration = Duration::from_secs(3);
/// The same limit for a sandbox that is about to be paused or removed.
const LAST_FETCH_TIMEOUT: Duration = Duration::from_millis(500);
/// The maximum number of polls to skip in a row.
const MAX_SKIPPED: u32 = 5;
/// How much output of a sandbox is kept, and how much more is recorded before the log is trimmed.
const KEPT_BYTES: usize = 4 << 20;
const TRIM_EVERY: usize = 1 << 20;
/// The maximum number of lines with the same timestamp. Readers continue from a timestamp, so all lines with one
/// timestamp must fit into one response.
const LINES_PER_TIMESTAMP: usize = 500;
/// How far a guest's clock may be ahead of the server's.
const CLOCK_LEEWAY: Duration = Duration::from_secs(1);
/// The maximum number of pages of one fetch. A guest never has that many.
const MAX_PAGES: usize = 64;

/// Polls at this interval until the server stops.
pub(crate) async fn run_output(fleet: Arc<Fleet>, every: Duration) {
    let mut pace = tokio::time::interval(every.max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = fleet.stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        tokio::select! {
            () = fleet.stop.cancelled() => return,
            () = fleet.fetch_all_output() => {}
        }
    }
}

impl Output {
    /// For a life that has just begun, or about which nothing is known.
    pub(crate) fn new() -> Self {
        Self { asked: AtomicBool::new(true), reading: tokio::sync::Mutex::default() }
    }

    /// Records that a request goes to the guest, so there may be output soon.
    pub(crate) fn expect(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}

impl Fleet {
    /// Fetches what the processes of a sandbox have printed so far. If the guest does not answer, it keeps the output.
    pub(crate) async fn fetch_output(&self, sandbox: &SandboxId, life: &Life) {
        self.fetch_within(sandbox, life, FETCH_TIMEOUT).await;
    }

    /// Like `fetch_output`, for a sandbox that is about to stop.
    pub(super) async fn fetch_last_output(&self, sandbox: &SandboxId, life: &Life) {
        self.fetch_within(sandbox, life, LAST_FETCH_TIMEOUT).await;
    }

    /// Polls all sandboxes that are due.
    async fn fetch_all_output(&self) {
        stream::iter(self.all())
            .for_each_concurrent(MAX_CONCURRENT, |sandbox| async move {
                let view = sandbox.view();
                if let Some(life) = &view.life
                    && life.output.is_due().await
                {
                    self.fetch_output(sandbox.id(), life).await;
                }
            })
            .await;
    }

    async fn fetch_within(&self, sandbox: &SandboxId, life: &Life, timeout: Duration) {
        match tokio::time::timeout(timeout, self.fetch(sandbox, life)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%sandbox, error = isopod_wire::error_chain(&error), "could not record the output of processes");
            }
            Err(_) => tracing::debug!(%sandbox, "the guest did not return its output in time"),
        }
    }

    async fn fetch(&self, sandbox: &SandboxId, life: &Life) -> Result<(), StoreError> {
        let mut reading = life.output.reading.lock().await;
        let mut position = match reading.position {
            Some(position) => position,
            None => self.store.output_position(&life.incarnation).await?,
        };
        // Before the request, because a guest that never answers causes a timeout that ends this function.
        reading.polls = 0;
        reading.skip = (reading.skip * 2 + 1).min(MAX_SKIPPED);
        for _ in 0..MAX_PAGES {
            let page = match read_output(self.node.as_ref(), &life.incarnation, position).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::debug!(%sandbox, error = isopod_wire::error_chain(&error), "could not read the output from the guest");
                    break;
                }
            };
            let (next, more) = (page.next, page.more);
            let lines = lines_of(page);
            if !lines.is_empty() {
                // If this task is cancelled during the write, only the store knows how far it got.
                reading.position = None;
                let reached = OutputPosition { incarnation: &life.incarnation, position: next };
                self.store.insert_output(&reached, &lines).await?;
                reading.untrimmed += lines.iter().map(LogLine::cost).sum::<usize>();
                reading.skip = 0;
            }
            reading.position = Some(next);
            // Stop if the guest claims to have more but makes no progress.
            if !more || next <= std::mem::replace(&mut position, next) {
                break;
            }
        }
        if reading.untrimmed > TRIM_EVERY {
            self.store.cut_logs(sandbox, KEPT_BYTES).await?;
            reading.untrimmed = 0;
        }
        Ok(())
    }
}

impl Output {
    /// Whether this poll should fetch.
    async fn is_due(&self) -> bool {
        let mut reading = self.reading.lock().await;
        if self.asked.swap(false, Ordering::Relaxed) {
            reading.skip = 0;
        }
        reading.polls += 1;
        reading.polls > reading.skip
    }
}

/// Converts a page into log entries, each with lines of one timestamp.
pub(super) fn lines_of(page: OutputPage) -> Vec<LogLine> {
    let mut lines = Vec::new();
    // Do not trust the guest's clock.
    let latest = Timestamp::now().plus(CLOCK_LEEWAY);
    let mut now = page.blocks.first().map_or(latest, |block| Timestamp(block.at).clamp(Timestamp(0), latest));
    if page.skipped > 0 {
        let fields = BTreeMap::from([("bytes".to_owned(), page.skipped.to_string())]);
        let message = "processes printed faster than the log was read; some output is missing here".to_owned();
        lines.push(LogLine { timestamp: now, level: Level::Warn, message, fields });
    }
    for block in page.blocks {
        // Never go back in time, because lines are sorted by timestamp.
        now = now.max(Timestamp(block.at).min(latest));
        now = push_block(&mut lines, &block, now);
    }
    lines
}

/// Adds a block. Returns the earliest timestamp for the next one.
fn push_block(lines: &mut Vec<LogLine>, block: &OutputBlock, mut now: Timestamp) -> Timestamp {
    let (stream, level) = match block.stream {
        Channel::Stdout => ("stdout", Level::Info),
        Channel::Stderr => ("stderr", Level::Error),
        Channel::Pty => ("pty", Level::Info),
    };
    let fields = [("stream", stream.to_owned()), ("pid", block.pid.to_string())];
    let fields: BTreeMap<_, _> = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let texts: Vec<&str> = block.text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
    for texts in texts.chunks(LINES_PER_TIMESTAMP) {
        // SQLite treats a NUL as the end of the text.
        let message = texts.join("\n").replace('\0', "\u{fffd}");
        lines.push(LogLine { timestamp: now, level, message, fields: fields.clone() });
        if texts.len() == LINES_PER_TIMESTAMP {
            now = Timestamp(now.0.saturating_add(1));
        }
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(at: i64, text: &str) -> OutputBlock {
        OutputBlock { at, pid: 1, stream: Channel::Stderr, text: text.to_owned() }
    }

    #[test]
    fn more_lines_than_fit_into_a_moment_are_spread_in_their_order() {
        let text = (0..1200).map(|number| number.to_string()).collect::<Vec<_>>().join("\n");
        let page = OutputPage { next: 1, more: false, skipped: 0, blocks: vec![block(7, &text), block(7, "x\r")] };
        let lines = lines_of(page);
        assert_eq!(lines.iter().map(|line| line.timestamp.0).collect::<Vec<_>>(), [7, 8, 9, 9]);
        assert_eq!(lines[3].message, "x");
        assert_eq!(lines.iter().map(|line| line.message.split('\n').count()).sum::<usize>(), 1201);
        assert!(lines.iter().all(|line| line.level == Level::Error));
    }

    #[test]
    fn what_is_missing_is_told() {
        let page = OutputPage { next: 9, more: false, skipped: 5, blocks: vec![block(3, "a\0b")] };
        let lines = lines_of(page);
        assert_eq!((lines[0].level, lines[0].fields["bytes"].as_str()), (Level::Warn, "5"));
        assert_eq!(lines[1].message, "a\u{fffd}b");
    }
}
