//! Ended processes, kept for clients that connect late.
//!
//! A client may be away for long, and not by its own choice: the server stops and starts, its database is gone for a
//! while, the sandbox is paused. Time is therefore counted in rounds of a timer of the guest. A sandbox that is paused has
//! none, so its pauses don't count, however long they last.

use std::collections::VecDeque;
use std::time::Duration;

/// The time between two rounds.
pub(super) const ROUND: Duration = Duration::from_secs(60);
/// How many whole rounds an ended process is kept.
const ROUNDS: u64 = 10;
/// How many ended processes are kept, and how much of their unread output in total.
const MAX_KEPT: usize = 1000;
const MAX_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Ended<T> {
    /// The youngest is last. Each with the round in which it ended.
    kept: VecDeque<(u64, T)>,
    round: u64,
    /// How much unread output a process has.
    bytes: fn(&T) -> usize,
}

impl<T> Ended<T> {
    pub(super) fn new(bytes: fn(&T) -> usize) -> Self {
        Self { kept: VecDeque::new(), round: 0, bytes }
    }

    pub(super) fn add(&mut self, process: T) {
        self.kept.push_back((self.round, process));
        self.trim();
    }

    pub(super) fn next_round(&mut self) {
        self.round += 1;
        self.trim();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// From the youngest to the oldest, because pids and tags are used again.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.kept.iter().rev().map(|(_, process)| process)
    }

    fn trim(&mut self) {
        let mut bytes: usize = self.iter().map(self.bytes).sum();
        while let Some((since, process)) = self.kept.front() {
            // The round in which it ended had begun before that, so it doesn't count.
            let is_recent = self.round - since <= ROUNDS;
            if is_recent && self.kept.len() <= MAX_KEPT && bytes <= MAX_BYTES {
                break;
            }
            bytes -= (self.bytes)(process);
            self.kept.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ended, MAX_BYTES, MAX_KEPT, ROUNDS};

    /// Each process is its number of unread bytes.
    fn ended(processes: impl IntoIterator<Item = usize>) -> Ended<usize> {
        let mut ended = Ended::new(|bytes| *bytes);
        processes.into_iter().for_each(|process| ended.add(process));
        ended
    }

    #[test]
    fn a_process_is_kept_for_whole_rounds() {
        let mut ended = ended([1]);
        ended.next_round();
        ended.add(2);
        for _ in 1..ROUNDS {
            ended.next_round();
        }
        assert_eq!(ended.iter().copied().collect::<Vec<_>>(), [2, 1]);
        ended.next_round();
        assert_eq!(ended.iter().copied().collect::<Vec<_>>(), [2]);
        ended.next_round();
        assert!(ended.is_empty());
    }

    #[test]
    fn the_oldest_make_room_for_more_than_the_limits() {
        let many = ended(0..MAX_KEPT + 5);
        assert_eq!((many.iter().count(), many.iter().last()), (MAX_KEPT, Some(&5)));
        let large = ended([MAX_BYTES / 2, MAX_BYTES / 2, 1]);
        assert_eq!(large.iter().copied().collect::<Vec<_>>(), [1, MAX_BYTES / 2]);
        assert!(ended([MAX_BYTES + 1]).is_empty());
    }
}
