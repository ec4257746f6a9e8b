//! The sandbox's log: what processes printed, kept until the host fetches it with `GET /logs?after=POSITION`.
//!
//! One ring of bounded size holds the output of all processes. It keeps the newest output; a host that asks too late learns
//! how many bytes were dropped. Processes never wait for the log. Positions count bytes since the guest started, so only
//! the host has to remember how far it has read. Output is stored in whole lines; very long lines are split.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::encoded::Base64;
use crate::stdio::Source;

/// The size of the ring in bytes, with the overhead of its blocks.
const CAPACITY: usize = 1 << 20;
/// What a block occupies in addition to its text.
const BLOCK_OVERHEAD: usize = size_of::<Block>() + 16;
/// A line that grows longer than this is stored before it is complete.
const MAX_LINE: usize = 16 << 10;
/// How much text one reply holds.
const MAX_PAGE: usize = 256 << 10;

/// The log of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// Written by the tasks that read processes' output; locked while one read is copied.
    ring: Mutex<Ring>,
}

/// Takes the output of one process.
#[derive(Debug)]
pub(crate) struct ProcessLog {
    logs: Arc<Logs>,
    pid: u32,
    /// The incomplete last line of each source. Written by the process's pump.
    partial_lines: Mutex<[Vec<u8>; 3]>,
}

/// The reply to the host.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    /// The position to ask for next.
    next: u64,
    /// Whether more is available now.
    more: bool,
    /// How many bytes between the requested position and the first block were dropped.
    skipped: u64,
    blocks: Vec<PageBlock>,
}

#[derive(Debug, Serialize)]
struct PageBlock {
    /// Milliseconds since 1970.
    at: u64,
    pid: u32,
    stream: &'static str,
    /// Whole lines, without the last line break.
    text: String,
}

#[derive(Debug, Default)]
struct Ring {
    blocks: VecDeque<Block>,
    /// The position after the last block.
    tail: u64,
    cost: usize,
}

#[derive(Debug)]
struct Block {
    start: u64,
    at: u64,
    pid: u32,
    source: Source,
    text: Box<[u8]>,
}

/// A part of a log that another guest takes over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedBlock {
    at: u64,
    pid: u32,
    source: Source,
    text: Base64,
}

impl Logs {
    pub(crate) fn save(&self) -> Vec<SavedBlock> {
        let save = |block: &Block| SavedBlock {
            at: block.at,
            pid: block.pid,
            source: block.source,
            text: Base64(block.text.to_vec()),
        };
        self.ring().blocks.iter().map(save).collect()
    }

    /// Begins with what another guest has saved.
    pub(crate) fn restore(&self, saved: Vec<SavedBlock>) {
        let mut ring = self.ring();
        for SavedBlock { at, pid, source, text } in saved {
            ring.push_at(at, pid, source, text.0.into_boxed_slice());
        }
    }

    /// Opens the log of a process that was just started.
    pub(crate) fn of_process(self: &Arc<Self>, pid: u32) -> Arc<ProcessLog> {
        Arc::new(ProcessLog { logs: Arc::clone(self), pid, partial_lines: Mutex::default() })
    }

    /// The output from this position on, as much as fits into one reply.
    pub(crate) fn page(&self, after: u64) -> Page {
        let ring = self.ring();
        let head = ring.blocks.front().map_or(ring.tail, |block| block.start);
        // A position beyond the end belongs to an earlier guest, so everything here is new to the host.
        let (from, skipped) =
            if after > ring.tail { (head, head) } else { (after.max(head), head.saturating_sub(after)) };
        let first = ring.blocks.partition_point(|block| block.start < from);
        let (mut taken, mut next, mut blocks) = (0, from, Vec::new());
        for block in ring.blocks.iter().skip(first) {
            if taken > 0 && taken + block.text.len() > MAX_PAGE {
                break;
            }
            taken += block.text.len();
            next = block.end();
            blocks.push(block.to_page_block());
        }
        Page { next, more: next < ring.tail, skipped, blocks }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessLog {
    /// Appends what the process printed.
    pub(crate) fn push(&self, source: Source, data: &[u8]) {
        let mut partial_lines = self.partial_lines();
        let line = &mut partial_lines[source as usize];
        let rest = match memchr::memrchr(b'\n', data) {
            Some(end) => {
                self.add(source, std::mem::take(line), &data[..end]);
                &data[end + 1..]
            }
            None => data,
        };
        line.extend_from_slice(rest);
        if line.len() > MAX_LINE {
            self.add(source, std::mem::take(line), &[]);
        }
    }

    /// The process has ended: stores its incomplete last lines.
    pub(crate) fn finish(&self) {
        let mut partial_lines = self.partial_lines();
        for source in [Source::Stdout, Source::Stderr, Source::Pty] {
            let line = std::mem::take(&mut partial_lines[source as usize]);
            if !line.is_empty() {
                self.add(source, line, &[]);
            }
        }
    }

    fn add(&self, source: Source, mut text: Vec<u8>, more: &[u8]) {
        text.extend_from_slice(more);
        self.logs.ring().push(self.pid, source, text.into_boxed_slice());
    }

    fn partial_lines(&self) -> MutexGuard<'_, [Vec<u8>; 3]> {
        self.partial_lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn push(&mut self, pid: u32, source: Source, text: Box<[u8]>) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        self.push_at(at, pid, source, text);
    }

    fn push_at(&mut self, at: u64, pid: u32, source: Source, text: Box<[u8]>) {
        let block = Block { start: self.tail, at, pid, source, text };
        self.tail = block.end();
        self.cost += block.cost();
        self.blocks.push_back(block);
        while self.cost > CAPACITY
            && let Some(oldest) = self.blocks.pop_front()
        {
            self.cost -= oldest.cost();
        }
    }
}

impl Block {
    /// The position after this block. The line break counts too, so an empty line also advances the position.
    fn end(&self) -> u64 {
        self.start + self.text.len() as u64 + 1
    }

    fn cost(&self) -> usize {
        self.text.len() + BLOCK_OVERHEAD
    }

    fn to_page_block(&self) -> PageBlock {
        let stream = match self.source {
            Source::Stdout => "stdout",
            Source::Stderr => "stderr",
            Source::Pty => "pty",
        };
        PageBlock { at: self.at, pid: self.pid, stream, text: String::from_utf8_lossy(&self.text).into_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(page: &Page) -> Vec<&str> {
        page.blocks.iter().map(|block| block.text.as_str()).collect()
    }

    #[test]
    fn lines_are_whole_however_they_were_printed() {
        let logs = Arc::new(Logs::default());
        let log = logs.of_process(7);
        log.push(Source::Stdout, b"on");
        log.push(Source::Stderr, b"oops\n");
        assert_eq!(texts(&logs.page(0)), ["oops"]);
        log.push(Source::Stdout, b"e\ntwo\nthr");
        log.push(Source::Stdout, b"ee");
        assert_eq!(texts(&logs.page(0)), ["oops", "one\ntwo"]);
        log.finish();
        log.finish();
        let page = logs.page(0);
        assert_eq!(texts(&page), ["oops", "one\ntwo", "three"]);
        assert_eq!((page.blocks[0].stream, page.blocks[0].pid, page.more), ("stderr", 7, false));
    }

    #[test]
    fn a_saved_log_is_read_like_ones_own() {
        let (source, other) = (Arc::new(Logs::default()), Arc::new(Logs::default()));
        source.of_process(3).push(Source::Stderr, b"one\ntwo\n");
        let saved = serde_json::to_vec(&source.save()).unwrap();
        other.restore(serde_json::from_slice(&saved).unwrap());
        other.of_process(4).push(Source::Stdout, b"three\n");
        let page = other.page(0);
        assert_eq!(texts(&page), ["one\ntwo", "three"]);
        assert_eq!((page.blocks[0].stream, page.blocks[0].pid), ("stderr", 3));
        assert_eq!(page.blocks[0].at, source.page(0).blocks[0].at);
    }

    #[test]
    fn reading_continues_where_it_stopped() {
        let logs = Arc::new(Logs::default());
        let log = logs.of_process(1);
        log.push(Source::Stdout, b"a\n");
        let first = logs.page(0);
        log.push(Source::Stdout, b"\nb\n");
        let second = logs.page(first.next);
        assert_eq!((texts(&second), second.skipped), (vec!["\nb"], 0));
        assert!(texts(&logs.page(second.next)).is_empty());
        // A host that has read from an earlier guest.
        assert_eq!(texts(&logs.page(u64::MAX)), ["a", "\nb"]);
    }

    #[test]
    fn after_a_flood_the_newest_is_kept_and_the_number_of_dropped_bytes_reported() {
        let logs = Arc::new(Logs::default());
        let log = logs.of_process(1);
        for number in 0..10_000 {
            log.push(Source::Stdout, format!("{number} {}\n", "x".repeat(1000)).as_bytes());
        }
        assert!(logs.ring().cost <= CAPACITY);
        let (mut at, mut blocks, mut skipped) = (0, Vec::new(), 0);
        loop {
            let page = logs.page(at);
            (at, skipped) = (page.next, skipped + page.skipped);
            assert!(page.blocks.iter().map(|block| block.text.len()).sum::<usize>() <= MAX_PAGE);
            blocks.extend(page.blocks);
            if !page.more {
                break;
            }
        }
        let kept: usize = blocks.iter().map(|block| block.text.len() + 1).sum();
        assert!(blocks.last().unwrap().text.starts_with("9999 "));
        assert_eq!(skipped + kept as u64, at);
        assert!(kept > CAPACITY / 2 && blocks.len() < 2000);
    }

    #[test]
    fn a_line_without_an_end_is_split() {
        let logs = Arc::new(Logs::default());
        let log = logs.of_process(1);
        for _ in 0..100 {
            log.push(Source::Pty, &[0xff; 1000]);
        }
        assert!(log.partial_lines().iter().all(|line| line.len() <= MAX_LINE));
        assert!(logs.page(0).blocks.len() >= 5);
    }
}
