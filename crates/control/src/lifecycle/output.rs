//! Brings what processes printed from the guests into the sandboxes' logs.
//!
//! The guest keeps output in a ring until it is fetched: at the pace of the samples of resource use, before somebody reads the log, and
//! before a sandbox is paused or removed. How far it was read stands in the store beside the lines, so that a new server
//! neither repeats nor leaves out any. A sandbox that prints nothing and is asked nothing is looked at less and less.

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

/// How far the output of one life has been fetched.
#[derive(Debug)]
pub(crate) struct Output {
    /// Whether something was asked of the guest since the last look.
    asked: AtomicBool,
    /// Held by whoever fetches, for as long as that takes.
    reading: tokio::sync::Mutex<Reading>,
}

#[derive(Debug, Default)]
struct Reading {
    /// What to ask the guest for next; none until the store was asked.
    position: Option<u64>,
    /// Looks since the last fetch, and how many of them to leave out.
    looks: u32,
    pause: u32,
    /// Bytes recorded since the log was last cut to its size.
    uncut: usize,
}

/// So many guests are asked at once.
const AT_ONCE: usize = 8;
/// A guest that has not answered by then is asked another time.
const PATIENCE: Duration = Duration::from_secs(3);
/// A removal or a pause does not wait longer.
const LAST_PATIENCE: Duration = Duration::from_millis(500);
/// The most looks that are left out in a row.
const MAX_PAUSE: u32 = 5;
/// How much of its output a sandbox keeps, and how much more before it is cut.
const KEPT_BYTES: usize = 4 << 20;
const CUT_EVERY: usize = 1 << 20;
/// Lines with the same timestamp. Readers go on from a timestamp, so all of one must fit into one answer.
const LINES_PER_MOMENT: usize = 500;
/// How far ahead of ours a guest's clock may be.
const CLOCK_LEEWAY: Duration = Duration::from_secs(1);
/// The most pages of one fetch: more than a guest ever has.
const MAX_PAGES: usize = 64;

/// Looks at this pace until the server stops.
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
    /// For a life that has just begun, or of which nothing is known.
    pub(crate) fn new() -> Self {
        Self { asked: AtomicBool::new(true), reading: tokio::sync::Mutex::default() }
    }

    /// Something is asked of the guest, so there may be output soon.
    pub(crate) fn expect(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}

impl Fleet {
    /// Fetches what the processes of a sandbox have printed until now. A guest that does not answer keeps it.
    pub(crate) async fn fetch_output(&self, sandbox: &SandboxId, life: &Life) {
        self.fetch_within(sandbox, life, PATIENCE).await;
    }

    /// The same for a sandbox that is about to stop.
    pub(super) async fn fetch_last_output(&self, sandbox: &SandboxId, life: &Life) {
        self.fetch_within(sandbox, life, LAST_PATIENCE).await;
    }

    /// Looks at all sandboxes, as often as each deserves.
    async fn fetch_all_output(&self) {
        stream::iter(self.all())
            .for_each_concurrent(AT_ONCE, |sandbox| async move {
                let view = sandbox.view();
                if let Some(life) = &view.life
                    && life.output.is_due().await
                {
                    self.fetch_output(sandbox.id(), life).await;
                }
            })
            .await;
    }

    async fn fetch_within(&self, sandbox: &SandboxId, life: &Life, patience: Duration) {
        match tokio::time::timeout(patience, self.fetch(sandbox, life)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%sandbox, error = isopod_wire::error_chain(&error), "output of processes was not recorded");
            }
            Err(_) => tracing::debug!(%sandbox, "the guest did not tell its output in time"),
        }
    }

    async fn fetch(&self, sandbox: &SandboxId, life: &Life) -> Result<(), StoreError> {
        let mut reading = life.output.reading.lock().await;
        let mut position = match reading.position {
            Some(position) => position,
            None => self.store.output_position(&life.incarnation).await?,
        };
        // Also for a guest that never answers, of whom nobody comes back here.
        reading.looks = 0;
        reading.pause = (reading.pause * 2 + 1).min(MAX_PAUSE);
        for _ in 0..MAX_PAGES {
            let page = match read_output(self.node.as_ref(), &life.incarnation, position).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::debug!(%sandbox, error = isopod_wire::error_chain(&error), "the guest did not tell its output");
                    break;
                }
            };
            let (next, more) = (page.next, page.more);
            let lines = lines_of(page);
            if !lines.is_empty() {
                // Whoever gives up while the store is at work does not know how far it got; the store does.
                reading.position = None;
                let reached = OutputPosition { incarnation: &life.incarnation, position: next };
                self.store.insert_output(&reached, &lines).await?;
                reading.uncut += lines.iter().map(LogLine::cost).sum::<usize>();
                reading.pause = 0;
            }
            reading.position = Some(next);
            // A guest that promises more and does not go on is not worth asking again.
            if !more || next <= std::mem::replace(&mut position, next) {
                break;
            }
        }
        if reading.uncut > CUT_EVERY {
            self.store.cut_logs(sandbox, KEPT_BYTES).await?;
            reading.uncut = 0;
        }
        Ok(())
    }
}

impl Output {
    /// Whether to fetch at this look.
    async fn is_due(&self) -> bool {
        let mut reading = self.reading.lock().await;
        if self.asked.swap(false, Ordering::Relaxed) {
            reading.pause = 0;
        }
        reading.looks += 1;
        reading.looks > reading.pause
    }
}

/// What to record of a page: rows of lines that share their moment.
pub(super) fn lines_of(page: OutputPage) -> Vec<LogLine> {
    let mut lines = Vec::new();
    // A guest may say anything about the time.
    let latest = Timestamp::now().plus(CLOCK_LEEWAY);
    let mut now = page.blocks.first().map_or(latest, |block| Timestamp(block.at).clamp(Timestamp(0), latest));
    if page.skipped > 0 {
        let fields = BTreeMap::from([("bytes".to_owned(), page.skipped.to_string())]);
        let message = "output was printed faster than it was kept; some is missing here".to_owned();
        lines.push(LogLine { timestamp: now, level: Level::Warn, message, fields });
    }
    for block in page.blocks {
        // Never back in time: the order of lines is that of their moments.
        now = now.max(Timestamp(block.at).min(latest));
        now = push_block(&mut lines, &block, now);
    }
    lines
}

/// Adds a block; says when the next may begin.
fn push_block(lines: &mut Vec<LogLine>, block: &OutputBlock, mut now: Timestamp) -> Timestamp {
    let (stream, level) = match block.stream {
        Channel::Stdout => ("stdout", Level::Info),
        Channel::Stderr => ("stderr", Level::Error),
        Channel::Pty => ("pty", Level::Info),
    };
    let fields = [("stream", stream.to_owned()), ("pid", block.pid.to_string())];
    let fields: BTreeMap<_, _> = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let texts: Vec<&str> = block.text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
    for texts in texts.chunks(LINES_PER_MOMENT) {
        // SQLite takes a NUL for the end of a text.
        let message = texts.join("\n").replace('\0', "\u{fffd}");
        lines.push(LogLine { timestamp: now, level, message, fields: fields.clone() });
        if texts.len() == LINES_PER_MOMENT {
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
