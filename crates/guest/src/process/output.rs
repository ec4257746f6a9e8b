//! The output of one process that not every client has received yet: a ring of bytes with absolute positions.
//!
//! Promises: bytes keep the order in which they were read from the process. A reader gets every byte from where it joined, or
//! learns how many it missed. A new reader starts where the furthest client is. The ring knows nothing of pipes, tasks or
//! wire formats.
//!
//! What a client has received: for a plain reader, what it has read. For a tracked reader, what the edge has reported as
//! delivered. Until the last report the ring also keeps a little before that position, because a report may retract an
//! earlier one.
//!
//! Backpressure: while readers are attached, the process is held back once the *fastest* of them is a whole ring behind;
//! slower readers are overtaken. Without readers the process is not held back, and the oldest bytes are dropped. The ring
//! holds at most its capacity of unread bytes, the same again of undelivered ones, and one read.

use std::collections::{BTreeMap, VecDeque};

use crate::stdio::Source;

/// How many unread bytes the ring of a process keeps.
pub(crate) const CAPACITY: usize = 1 << 20;

/// How far a report may retract an earlier one.
const MAX_RETRACTION: u64 = 64 << 10;

/// How much of the capacity a change of source uses: its entry in `segments`.
const SEGMENT_COST: usize = size_of::<Segment>();

/// The bytes from `start` to the next segment's start came from `source`.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    source: Source,
}

/// Identifies a reader of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReaderId(u64);

/// The reader was too slow: it missed this many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overtaken {
    pub(crate) skipped: u64,
}

/// A client that has the first `bytes` of a stream has the output up to `position`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) bytes: u64,
    pub(crate) position: u64,
}

#[derive(Debug)]
struct Reader {
    /// The position up to which it has read.
    at: u64,
    /// Whether it is still reading.
    attached: bool,
    /// `None` for a plain reader.
    tracking: Option<Tracking>,
}

#[derive(Debug)]
struct Tracking {
    /// The position up to which its client has the output.
    delivered: u64,
    /// In order. A report cannot go back further than the first one.
    marks: VecDeque<Mark>,
    /// Whether the last report has arrived.
    settled: bool,
}

/// The ring.
#[derive(Debug)]
pub(crate) struct Output {
    bytes: VecDeque<u8>,
    segments: VecDeque<Segment>,
    /// The position of the first byte in the ring.
    head: u64,
    /// The furthest position that clients of former readers reached.
    retired: u64,
    /// Readers that still read, and former readers about which a report is still expected.
    readers: BTreeMap<ReaderId, Reader>,
    next_reader: u64,
    capacity: usize,
}

impl Reader {
    /// The position up to which its client has the output.
    fn delivered(&self) -> u64 {
        self.tracking.as_ref().map_or(self.at, |tracking| tracking.delivered)
    }

    /// The first position that this reader still needs.
    fn needs_from(&self) -> u64 {
        self.tracking.as_ref().and_then(|tracking| tracking.marks.front()).map_or(self.at, |mark| mark.position)
    }

    fn is_over(&self) -> bool {
        !self.attached && self.tracking.as_ref().is_none_or(|tracking| tracking.settled)
    }
}

impl Tracking {
    fn new(start: u64) -> Self {
        Self { delivered: start, marks: VecDeque::from([Mark { bytes: 0, position: start }]), settled: false }
    }

    fn report(&mut self, bytes: u64) {
        let known = self.marks.partition_point(|mark| mark.bytes <= bytes);
        // A report before the first mark retracts too much.
        self.delivered = self.marks[known.saturating_sub(1)].position;
        self.forget_until(self.delivered.saturating_sub(MAX_RETRACTION));
    }

    /// Drops marks before this position: no report goes back further.
    fn forget_until(&mut self, position: u64) {
        let old = self.marks.partition_point(|mark| mark.position <= position).saturating_sub(1);
        self.marks.drain(..old);
    }
}

impl Output {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            segments: VecDeque::new(),
            head: 0,
            retired: 0,
            readers: BTreeMap::new(),
            next_reader: 0,
            capacity,
        }
    }

    /// The output of a process of an earlier guest that no client has received. It is kept even if it is more than the capacity,
    /// because a slow client may have held the process back.
    pub(crate) fn restored(capacity: usize, undelivered: impl IntoIterator<Item = (Source, Vec<u8>)>) -> Self {
        let mut output = Self::new(usize::MAX);
        for (source, data) in undelivered {
            output.push(source, &data);
        }
        output.capacity = capacity.max(output.cost());
        output
    }

    /// What no client has received.
    pub(crate) fn undelivered(&self) -> Vec<(Source, Vec<u8>)> {
        let mut at = self.delivered().max(self.head);
        let mut pieces: Vec<(Source, Vec<u8>)> = Vec::new();
        while at < self.tail() {
            let (source, segment_end) = self.segment_at(at);
            let run = self.contiguous(at, segment_end);
            at += run.len() as u64;
            match pieces.last_mut() {
                Some((last, data)) if *last == source => data.extend_from_slice(run),
                _ => pieces.push((source, run.to_vec())),
            }
        }
        pieces
    }

    /// Whether the pump may read more from the process.
    pub(crate) fn has_room(&self) -> bool {
        self.fastest().is_none_or(|fastest| self.lag_behind_tail(fastest) < self.capacity)
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

    /// Adds a plain reader, which starts with the output that no client has received yet.
    pub(crate) fn attach(&mut self) -> ReaderId {
        self.insert(|_| None)
    }

    /// Adds a reader whose client has received only what is reported.
    pub(crate) fn attach_tracked(&mut self) -> ReaderId {
        self.insert(|start| Some(Tracking::new(start)))
    }

    /// Adds a reader about which no report will come: its client counts as having received nothing.
    pub(crate) fn attach_undelivered(&mut self) -> ReaderId {
        let id = self.attach_tracked();
        self.settle(id);
        id
    }

    fn insert(&mut self, tracking: impl FnOnce(u64) -> Option<Tracking>) -> ReaderId {
        let id = ReaderId(self.next_reader);
        self.next_reader += 1;
        let at = self.delivered().max(self.head);
        self.readers.insert(id, Reader { at, attached: true, tracking: tracking(at) });
        id
    }

    /// The reader stops reading. Reports about a tracked one may still arrive.
    pub(crate) fn detach(&mut self, id: ReaderId) {
        if let Some(reader) = self.readers.get_mut(&id) {
            reader.attached = false;
        }
        self.retire(id);
    }

    /// Records which bytes of a tracked reader's stream hold which output.
    pub(crate) fn mark(&mut self, id: ReaderId, marks: impl IntoIterator<Item = Mark>) {
        let head = self.head;
        // Marks have no use after the last report.
        if let Some(tracking) = self.tracking(id).filter(|tracking| !tracking.settled) {
            tracking.marks.extend(marks);
            tracking.forget_until(head);
        }
    }

    /// The client of a tracked reader has received this many bytes of its stream.
    pub(crate) fn report(&mut self, id: ReaderId, bytes: u64) {
        if let Some(tracking) = self.tracking(id) {
            tracking.report(bytes);
        }
        self.drop_delivered();
    }

    /// No more reports about this reader will come.
    pub(crate) fn settle(&mut self, id: ReaderId) {
        if let Some(tracking) = self.tracking(id) {
            tracking.settled = true;
        }
        self.retire(id);
    }

    /// Passes the reader's next bytes to `take`, in chunks of one source and at most `piece` bytes, each with the position of its
    /// end, until about `budget` bytes are passed. Returns how many bytes that were; 0 means that the reader is up to date.
    pub(crate) fn read(
        &mut self,
        id: ReaderId,
        piece: usize,
        budget: usize,
        mut take: impl FnMut(Source, &[u8], u64),
    ) -> Result<usize, Overtaken> {
        let Some(start) = self.readers.get(&id).map(|reader| reader.at) else { return Ok(0) };
        if start < self.head {
            return Err(Overtaken { skipped: self.head - start });
        }
        let end = self.tail().min(start + budget as u64);
        let mut at = start;
        while at < end {
            let (source, segment_end) = self.segment_at(at);
            let run = self.contiguous(at, segment_end.min(end).min(at + piece as u64));
            at += run.len() as u64;
            take(source, run, at);
        }
        if let Some(reader) = self.readers.get_mut(&id) {
            reader.at = at;
        }
        self.drop_delivered();
        Ok((at - start) as usize)
    }

    /// How many bytes the reader has not read yet.
    pub(crate) fn waiting(&self, id: ReaderId) -> usize {
        self.readers.get(&id).map_or(0, |reader| (self.tail() - reader.at) as usize)
    }

    /// Bytes in memory.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Frees unused memory once no more output will come.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.segments.shrink_to_fit();
    }

    fn tail(&self) -> u64 {
        self.head + self.bytes.len() as u64
    }

    /// The furthest position that any client has reached.
    fn delivered(&self) -> u64 {
        self.readers.values().map(Reader::delivered).fold(self.retired, u64::max)
    }

    /// How far the fastest attached reader has read.
    fn fastest(&self) -> Option<u64> {
        self.readers.values().filter(|reader| reader.attached).map(|reader| reader.at).max()
    }

    fn tracking(&mut self, id: ReaderId) -> Option<&mut Tracking> {
        self.readers.get_mut(&id)?.tracking.as_mut()
    }

    /// Removes a reader that has stopped and about which no report is expected.
    fn retire(&mut self, id: ReaderId) {
        if let Some(reader) = self.readers.get(&id).filter(|reader| reader.is_over()) {
            self.retired = self.retired.max(reader.delivered());
            self.readers.remove(&id);
        }
        self.drop_delivered();
    }

    fn lag_behind_tail(&self, position: u64) -> usize {
        let unread = (self.tail() - position.max(self.head)) as usize;
        let first = self.segments.partition_point(|s| s.start < position);
        unread + (self.segments.len() - first) * SEGMENT_COST
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

    /// Drops bytes that no present or future reader needs.
    fn drop_delivered(&mut self) {
        let needed = self.readers.values().map(Reader::needs_from).min();
        self.forget_until(needed.unwrap_or(u64::MAX).min(self.delivered()));
    }

    /// Drops the oldest bytes until the ring fits its capacity.
    fn drop_oldest(&mut self) {
        let Some(fastest) = self.fastest() else { return self.drop_excess(self.capacity, self.tail()) };
        self.drop_excess(self.capacity, self.delivered().min(fastest));
        // More than can be on its way to a client, so the reports must have stopped.
        self.drop_excess(self.capacity.saturating_mul(2), fastest);
    }

    fn cost(&self) -> usize {
        self.bytes.len() + self.segments.len() * SEGMENT_COST
    }

    /// Drops the oldest bytes before `limit` until the rest uses no more than `max`.
    fn drop_excess(&mut self, max: usize, limit: u64) {
        if let Some(excess) = self.cost().checked_sub(max).filter(|excess| *excess > 0) {
            self.forget_until((self.head + excess as u64).min(limit));
        }
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
        while output.read(id, 7, 20, |source, bytes, _| match got.last_mut() {
            Some((last, data)) if *last == source => data.extend(bytes),
            _ => got.push((source, bytes.to_vec())),
        })? > 0
        {}
        Ok(got)
    }

    #[test]
    fn a_slow_reader_learns_what_it_missed_and_does_not_hold_others_back() {
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
    fn what_was_read_for_nobody_is_given_to_the_next_reader() {
        let mut output = Output::new(100);
        output.push(Source::Stdout, b"before");
        let nobody = output.attach_undelivered();
        assert_eq!(read_all(&mut output, nobody).unwrap(), [(Source::Stdout, b"before".to_vec())]);
        output.push(Source::Stdout, b" and after");
        output.detach(nobody);
        let next = output.attach();
        assert_eq!(read_all(&mut output, next).unwrap(), [(Source::Stdout, b"before and after".to_vec())]);
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
    fn a_checkpoint_has_what_no_client_received_and_keeps_all_of_it() {
        let mut output = Output::new(100);
        let slow = output.attach();
        output.push(Source::Stdout, b"received ");
        read_all(&mut output, slow).unwrap();
        output.push(Source::Stdout, &[1; 99]);
        output.push(Source::Stderr, &[2; 60]);
        let undelivered = output.undelivered();
        assert_eq!(undelivered, [(Source::Stdout, vec![1; 99]), (Source::Stderr, vec![2; 60])]);
        let mut restored = Output::restored(100, undelivered.clone());
        let reader = restored.attach();
        assert_eq!(read_all(&mut restored, reader).unwrap(), undelivered);
        // The source goes on as if nothing had happened.
        assert_eq!(read_all(&mut output, slow).unwrap(), undelivered);
        assert!(output.undelivered().is_empty());
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

    /// Reads everything as a stream in which each byte of output takes two bytes. Returns the length of that stream.
    fn read_tracked(output: &mut Output, id: ReaderId, mut length: u64) -> u64 {
        let mut marks = Vec::new();
        while output
            .read(id, 7, 20, |_, bytes, position| {
                length += 2 * bytes.len() as u64;
                marks.push(Mark { bytes: length, position });
            })
            .unwrap()
            > 0
        {}
        output.mark(id, marks);
        length
    }

    fn text_of_next_reader(output: &mut Output) -> Vec<u8> {
        let id = output.attach();
        let text = read_all(output, id).unwrap().into_iter().flat_map(|(_, bytes)| bytes).collect();
        output.detach(id);
        text
    }

    #[test]
    fn the_next_reader_starts_where_the_last_client_stopped() {
        let mut output = Output::new(1000);
        let id = output.attach_tracked();
        output.push(Source::Stdout, b"0123456789abcdefghij");
        // Pieces of seven bytes end at 14, 28 and 40 bytes of the stream.
        assert_eq!(read_tracked(&mut output, id, 0), 40);
        output.report(id, 30);
        output.detach(id);
        assert_eq!(output.len(), 20, "a report may still take back what was reported");
        output.report(id, 15);
        output.settle(id);
        assert_eq!(output.len(), 13);
        assert_eq!(text_of_next_reader(&mut output), b"789abcdefghij");
        assert_eq!(output.len(), 0);
    }

    #[test]
    fn a_second_reader_starts_where_the_first_client_is() {
        let mut output = Output::new(1000);
        let first = output.attach_tracked();
        output.push(Source::Stdout, b"0123456789abcd");
        let length = read_tracked(&mut output, first, 0);
        output.report(first, 14);
        let second = output.attach();
        output.push(Source::Stderr, b"E");
        assert_eq!(
            read_all(&mut output, second).unwrap(),
            [(Source::Stdout, b"789abcd".to_vec()), (Source::Stderr, b"E".to_vec())]
        );
        assert_eq!(read_tracked(&mut output, first, length), length + 2);
    }

    #[test]
    fn undelivered_output_is_bounded_when_reports_stop() {
        let mut output = Output::new(1000);
        let id = output.attach_tracked();
        let mut length = 0;
        for _ in 0..100 {
            assert!(output.has_room(), "a client that reads holds nothing back");
            output.push(Source::Stdout, &[1; 100]);
            length = read_tracked(&mut output, id, length);
        }
        assert!(output.len() <= 2100, "{}", output.len());
        output.report(id, length);
        assert_eq!(output.delivered(), 10_000);
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
        /// Compares with a model that keeps every byte: a reader gets a part of it without gaps, or learns what it missed.
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
                        let result = output.read(readers[n].0, 7, 50, |s, b, _| got.extend(b.iter().map(|b| (s, *b))));
                        if result.is_err() {
                            output.detach(readers.remove(n).0);
                            continue;
                        }
                        if got.is_empty() {
                            continue;
                        }
                        let at = readers[n].1.unwrap_or_else(|| {
                            // A new reader may start anywhere; find where.
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

        /// Whatever is reported, retracted or lost on its way: the next reader starts with the first byte that the
        /// furthest client has not received.
        #[test]
        fn nothing_is_lost_and_nothing_is_repeated(
            rounds in proptest::collection::vec((1usize..60, any::<proptest::sample::Index>(), any::<proptest::sample::Index>()), 1..20)
        ) {
            let mut output = Output::new(1 << 20);
            let mut printed: Vec<u8> = Vec::new();
            let mut got: Vec<u8> = Vec::new();
            for (len, passed_on, received) in rounds {
                let data: Vec<u8> = (0..len).map(|n| (printed.len() + n) as u8).collect();
                output.push(Source::Stdout, &data);
                printed.extend(&data);
                let id = output.attach_tracked();
                let (mut frames, mut marks) = (Vec::new(), Vec::new());
                while output.read(id, 7, 20, |_, bytes, position| {
                    frames.push(bytes.to_vec());
                    marks.push(Mark { bytes: 9 * frames.len() as u64, position });
                }).unwrap() > 0 {}
                output.mark(id, marks);
                // The edge has forwarded some, and the client has received some of that. Half a frame does not count.
                let passed_on = passed_on.index(9 * frames.len() + 1) as u64;
                output.report(id, passed_on);
                let received = received.index(passed_on as usize + 1) as u64;
                output.report(id, received);
                output.detach(id);
                output.settle(id);
                got.extend(frames.iter().take(received as usize / 9).flatten());
                prop_assert_eq!(&got[..], &printed[..got.len()]);
                prop_assert_eq!(output.delivered() as usize, got.len());
            }
        }
    }
}
