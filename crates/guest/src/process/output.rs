//! What a process has printed and not everyone has read yet: one byte ring per process with absolute positions.
//!
//! Promises: bytes keep the order in which they were read from the process; a reader gets every byte from where it
//! joined, or is told how many it missed. The ring holds at most its capacity plus one read. It knows nothing of
//! pipes, tasks or wire formats.
//!
//! Who waits for whom: while readers exist, the process is held back once the *fastest* of them is a whole ring
//! behind; slower ones are overtaken. Without readers nothing is held back and the oldest bytes fall out.

use std::collections::{BTreeMap, VecDeque};

/// How many unread bytes are kept for each process.
pub(crate) const CAPACITY: usize = 1 << 20;

/// What one change of source costs of the capacity: its entry in `segments`.
const SEGMENT_COST: usize = size_of::<Segment>();

/// Where output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
    Pty,
}

/// The bytes from `start` to the next segment's start came from `source`.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    source: Source,
}

/// Names a reader of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReaderId(u64);

/// The reader was too slow; this many bytes are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overtaken {
    pub(crate) skipped: u64,
}

/// The ring.
#[derive(Debug)]
pub(crate) struct Output {
    bytes: VecDeque<u8>,
    segments: VecDeque<Segment>,
    /// Position of the first byte kept.
    head: u64,
    /// The furthest that any reader ever got.
    seen: u64,
    readers: BTreeMap<ReaderId, u64>,
    next_reader: u64,
    capacity: usize,
}

impl Output {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            segments: VecDeque::new(),
            head: 0,
            seen: 0,
            readers: BTreeMap::new(),
            next_reader: 0,
            capacity,
        }
    }

    /// Whether more may be read from the process now.
    pub(crate) fn has_room(&self) -> bool {
        self.readers.is_empty() || self.seen_lag() < self.capacity
    }

    /// Appends what the process printed.
    pub(crate) fn push(&mut self, source: Source, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        if self.segments.back().is_none_or(|last| last.source != source) {
            self.segments.push_back(Segment { start: self.tail(), source });
        }
        self.bytes.extend(data);
        self.drop_oldest();
    }

    /// A new reader: it begins with what nobody has read yet.
    pub(crate) fn attach(&mut self) -> ReaderId {
        let id = ReaderId(self.next_reader);
        self.next_reader += 1;
        self.readers.insert(id, self.seen.max(self.head));
        id
    }

    pub(crate) fn detach(&mut self, id: ReaderId) {
        self.readers.remove(&id);
        self.drop_read();
    }

    /// Hands the reader's next bytes to `take`, in pieces of one source and at most `piece` bytes, until about `budget`
    /// bytes are gone. Returns how many it handed out; none means that the reader is up to date.
    pub(crate) fn read(
        &mut self,
        id: ReaderId,
        piece: usize,
        budget: usize,
        mut take: impl FnMut(Source, &[u8]),
    ) -> Result<usize, Overtaken> {
        let Some(&start) = self.readers.get(&id) else { return Ok(0) };
        if start < self.head {
            return Err(Overtaken { skipped: self.head - start });
        }
        let end = self.tail().min(start + budget as u64);
        let mut at = start;
        while at < end {
            let (source, segment_end) = self.segment_at(at);
            let run = self.contiguous(at, segment_end.min(end).min(at + piece as u64));
            take(source, run);
            at += run.len() as u64;
        }
        self.readers.insert(id, at);
        self.seen = self.seen.max(at);
        self.drop_read();
        Ok((at - start) as usize)
    }

    /// How many bytes the reader has not read yet.
    pub(crate) fn waiting(&self, id: ReaderId) -> usize {
        self.readers.get(&id).map_or(0, |at| (self.tail() - at) as usize)
    }

    /// Bytes in memory.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Gives memory back once nothing more will be pushed.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.segments.shrink_to_fit();
    }

    fn tail(&self) -> u64 {
        self.head + self.bytes.len() as u64
    }

    fn seen_lag(&self) -> usize {
        let unseen = (self.tail() - self.seen.max(self.head)) as usize;
        let first = self.segments.partition_point(|s| s.start < self.seen);
        unseen + (self.segments.len() - first) * SEGMENT_COST
    }

    fn segment_at(&self, position: u64) -> (Source, u64) {
        let next = self.segments.partition_point(|s| s.start <= position);
        let source = self.segments[next - 1].source;
        (source, self.segments.get(next).map_or_else(|| self.tail(), |s| s.start))
    }

    fn contiguous(&self, from: u64, to: u64) -> &[u8] {
        let (front, back) = self.bytes.as_slices();
        let (from, to) = ((from - self.head) as usize, (to - self.head) as usize);
        match from.checked_sub(front.len()) {
            None => &front[from..to.min(front.len())],
            Some(in_back) => &back[in_back..to - front.len()],
        }
    }

    /// Forgets what every reader has and no later one would get.
    fn drop_read(&mut self) {
        let slowest = self.readers.values().copied().min().unwrap_or(self.seen);
        self.forget_until(slowest.min(self.seen));
    }

    /// Makes the ring fit its capacity again.
    fn drop_oldest(&mut self) {
        let cost = self.bytes.len() + self.segments.len() * SEGMENT_COST;
        let Some(excess) = cost.checked_sub(self.capacity).filter(|e| *e > 0) else { return };
        let limit = if self.readers.is_empty() { self.tail() } else { self.seen };
        self.forget_until((self.head + excess as u64).min(limit));
    }

    fn forget_until(&mut self, position: u64) {
        if position <= self.head {
            return;
        }
        self.bytes.drain(..(position - self.head) as usize);
        self.head = position;
        // The last segment that starts at or before the head still names the source of the bytes there.
        let keep_from = self.segments.partition_point(|s| s.start <= position).saturating_sub(1);
        self.segments.drain(..keep_from);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_all(output: &mut Output, id: ReaderId) -> Result<Vec<(Source, Vec<u8>)>, Overtaken> {
        let mut got: Vec<(Source, Vec<u8>)> = Vec::new();
        while output.read(id, 7, 20, |source, bytes| match got.last_mut() {
            Some((last, data)) if *last == source => data.extend(bytes),
            _ => got.push((source, bytes.to_vec())),
        })? > 0
        {}
        Ok(got)
    }

    #[test]
    fn a_slow_reader_is_told_what_it_missed_and_does_not_hold_others_back() {
        let mut output = Output::new(100);
        let (slow, fast) = (output.attach(), output.attach());
        for _ in 0..10 {
            assert!(output.has_room());
            output.push(Source::Stdout, &[1; 60]);
            assert_eq!(read_all(&mut output, fast).unwrap().len(), 1);
        }
        let missed = read_all(&mut output, slow).unwrap_err();
        assert!(missed.skipped >= 500 && missed.skipped <= 600, "{missed:?}");
    }

    #[test]
    fn the_process_waits_for_its_only_reader_and_loses_nothing() {
        let mut output = Output::new(100);
        let id = output.attach();
        output.push(Source::Stdout, &[1; 90]);
        assert!(!output.has_room());
        output.push(Source::Stderr, &[2; 50]);
        let got = read_all(&mut output, id).unwrap();
        assert_eq!(got, [(Source::Stdout, vec![1; 90]), (Source::Stderr, vec![2; 50])]);
        assert!(output.has_room());
        assert_eq!(output.len(), 0);
    }

    #[test]
    fn without_readers_the_newest_output_is_kept_for_the_next_one() {
        let mut output = Output::new(100);
        for n in 0..50u8 {
            assert!(output.has_room());
            output.push(Source::Pty, &[n; 10]);
        }
        let id = output.attach();
        let got = read_all(&mut output, id).unwrap();
        assert_eq!(got.len(), 1);
        assert!(got[0].1.ends_with(&[49; 10]) && got[0].1.len() <= 100, "{got:?}");
        let later = output.attach();
        assert!(read_all(&mut output, later).unwrap().is_empty());
    }

    #[test]
    fn a_leaving_reader_frees_what_it_kept() {
        let mut output = Output::new(1000);
        let (a, b) = (output.attach(), output.attach());
        output.push(Source::Stdout, &[1; 500]);
        read_all(&mut output, a).unwrap();
        assert_eq!(output.len(), 500);
        output.detach(b);
        assert_eq!(output.len(), 0);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(bool, usize),
        Read(usize),
        Attach,
        Detach(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (any::<bool>(), 0usize..80).prop_map(|(err, len)| Step::Push(err, len)),
            (0usize..4).prop_map(Step::Read),
            Just(Step::Attach),
            (0usize..4).prop_map(Step::Detach),
        ]
    }

    proptest! {
        /// Against a model that keeps every byte: what a reader gets is a gapless piece of the whole, unless it is told.
        #[test]
        fn readers_get_everything_in_order_or_are_told(steps in proptest::collection::vec(step(), 0..120)) {
            let mut output = Output::new(200);
            let mut model: Vec<(Source, u8)> = Vec::new();
            let mut readers: Vec<(ReaderId, Option<usize>)> = Vec::new();
            let mut counter = 0u8;
            for step in steps {
                match step {
                    Step::Push(err, len) if output.has_room() => {
                        let source = if err { Source::Stderr } else { Source::Stdout };
                        let data: Vec<u8> = (0..len).map(|_| { counter = counter.wrapping_add(1); counter }).collect();
                        output.push(source, &data);
                        model.extend(data.iter().map(|b| (source, *b)));
                        prop_assert!(output.len() <= 200 + 80);
                    }
                    Step::Push(..) => {}
                    Step::Attach => {
                        let id = output.attach();
                        readers.push((id, None));
                    }
                    Step::Detach(n) if n < readers.len() => output.detach(readers.remove(n).0),
                    Step::Read(n) if n < readers.len() => {
                        let mut got = Vec::new();
                        let result = output.read(readers[n].0, 7, 50, |s, b| got.extend(b.iter().map(|b| (s, *b))));
                        if result.is_err() {
                            output.detach(readers.remove(n).0);
                            continue;
                        }
                        if got.is_empty() {
                            continue;
                        }
                        let at = readers[n].1.unwrap_or_else(|| {
                            // A new reader may begin anywhere; find where.
                            (0..=model.len() - got.len()).rev().find(|at| model[*at..*at + got.len()] == got[..]).unwrap_or(model.len())
                        });
                        prop_assert!(at + got.len() <= model.len());
                        prop_assert_eq!(&model[at..at + got.len()], &got[..]);
                        readers[n].1 = Some(at + got.len());
                    }
                    Step::Detach(_) | Step::Read(_) => {}
                }
            }
        }
    }
}
