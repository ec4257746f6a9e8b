//! What processes printed, for the sandbox's log: kept until the host fetches it with `GET /logs?after=POSITION`.
//!
//! One ring for all processes of the sandbox, bounded in memory: the newest output stays, and who asks too late is told
//! how many bytes are gone. A process never waits for it. Positions count the bytes since the guest began, so the host
//! alone remembers how far it has read. Output goes in whole lines; one that grows too long goes in pieces.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::process::Source;

/// How much is kept, what stands around the text included.
const CAPACITY: usize = 1 << 20;
/// What a block costs beside its text.
const BLOCK_COST: usize = size_of::<Block>() + 16;
/// A line without an end is passed on once it is this long.
const LONGEST_LINE: usize = 16 << 10;
/// How much text goes into one answer.
const PAGE: usize = 256 << 10;

/// The log of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// Written by whoever reads a process's output; held for a copy of at most one read.
    ring: Mutex<Ring>,
}

/// Where the output of one process goes.
#[derive(Debug)]
pub(crate) struct ProcessLog {
    logs: Arc<Logs>,
    pid: u32,
    /// The beginning of a line per source. Written by the process's pump.
    begun: Mutex<[Vec<u8>; 3]>,
}

/// An answer to the host.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    /// What to ask for next.
    next: u64,
    /// Whether there is more already.
    more: bool,
    /// How many bytes between what was asked for and the first block are gone.
    skipped: u64,
    blocks: Vec<PageBlock>,
}

#[derive(Debug, Serialize)]
struct PageBlock {
    /// Milliseconds since 1970.
    at: u64,
    pid: u32,
    stream: &'static str,
    /// Lines, without the end of the last one.
    text: String,
}

#[derive(Debug, Default)]
struct Ring {
    blocks: VecDeque<Block>,
    /// The position behind the last block.
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

impl Logs {
    /// Opens the log of a process that was just started.
    pub(crate) fn of_process(self: &Arc<Self>, pid: u32) -> Arc<ProcessLog> {
        Arc::new(ProcessLog { logs: Arc::clone(self), pid, begun: Mutex::default() })
    }

    /// What was printed from this position on, as much as fits into one answer.
    pub(crate) fn page(&self, after: u64) -> Page {
        let ring = self.ring();
        let head = ring.blocks.front().map_or(ring.tail, |block| block.start);
        // A position that was never reached is of another guest: everything is new to whoever asks.
        let (from, skipped) =
            if after > ring.tail { (head, head) } else { (after.max(head), head.saturating_sub(after)) };
        let first = ring.blocks.partition_point(|block| block.start < from);
        let (mut taken, mut next, mut blocks) = (0, from, Vec::new());
        for block in ring.blocks.iter().skip(first) {
            if taken > 0 && taken + block.text.len() > PAGE {
                break;
            }
            taken += block.text.len();
            next = block.end();
            blocks.push(block.shown());
        }
        Page { next, more: next < ring.tail, skipped, blocks }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessLog {
    /// Takes what the process printed.
    pub(crate) fn push(&self, source: Source, data: &[u8]) {
        let mut begun = self.begun();
        let line = &mut begun[source as usize];
        let rest = match memchr::memrchr(b'\n', data) {
            Some(end) => {
                self.add(source, std::mem::take(line), &data[..end]);
                &data[end + 1..]
            }
            None => data,
        };
        line.extend_from_slice(rest);
        if line.len() > LONGEST_LINE {
            self.add(source, std::mem::take(line), &[]);
        }
    }

    /// The process has ended: what it printed last counts without the end of the line.
    pub(crate) fn finish(&self) {
        let mut begun = self.begun();
        for source in [Source::Stdout, Source::Stderr, Source::Pty] {
            let line = std::mem::take(&mut begun[source as usize]);
            if !line.is_empty() {
                self.add(source, line, &[]);
            }
        }
    }

    fn add(&self, source: Source, mut text: Vec<u8>, more: &[u8]) {
        text.extend_from_slice(more);
        self.logs.ring().push(self.pid, source, text.into_boxed_slice());
    }

    fn begun(&self) -> MutexGuard<'_, [Vec<u8>; 3]> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn push(&mut self, pid: u32, source: Source, text: Box<[u8]>) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
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
    /// An empty line takes a place too: positions grow with every block.
    fn end(&self) -> u64 {
        self.start + self.text.len() as u64 + 1
    }

    fn cost(&self) -> usize {
        self.text.len() + BLOCK_COST
    }

    fn shown(&self) -> PageBlock {
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
    fn reading_goes_on_where_it_stopped() {
        let logs = Arc::new(Logs::default());
        let log = logs.of_process(1);
        log.push(Source::Stdout, b"a\n");
        let first = logs.page(0);
        log.push(Source::Stdout, b"\nb\n");
        let second = logs.page(first.next);
        assert_eq!((texts(&second), second.skipped), (vec!["\nb"], 0));
        assert!(texts(&logs.page(second.next)).is_empty());
        // A host that read from another guest before.
        assert_eq!(texts(&logs.page(u64::MAX)), ["a", "\nb"]);
    }

    #[test]
    fn a_flood_keeps_the_newest_and_says_how_much_is_gone() {
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
            assert!(page.blocks.iter().map(|block| block.text.len()).sum::<usize>() <= PAGE);
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
    fn a_line_without_an_end_does_not_grow_for_ever() {
        let logs = Arc::new(Logs::default());
        let log = logs.of_process(1);
        for _ in 0..100 {
            log.push(Source::Pty, &[0xff; 1000]);
        }
        assert!(log.begun().iter().all(|line| line.len() <= LONGEST_LINE));
        assert!(logs.page(0).blocks.len() >= 5);
    }
}
