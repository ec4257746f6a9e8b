//! A server's side: what it may do by what the database has told it, at a moment by its own clock.
//!
//! A lease counts from the moment at which the request for it was *sent*. The database counts from when the request
//! arrived, which is later, so the server always stops first.

use super::member::LeaseLost;
use super::time::{Epoch, ServerTime, Terms};

/// What a server knows about its own lease.
#[derive(Clone, Copy, Debug)]
pub struct OwnLease {
    terms: Terms,
    held: Option<Held>,
    /// The last epoch in which it held a lease. Zero: none yet.
    known: Epoch,
    /// The epoch after which it has last asked to begin one.
    asked_after: Option<Epoch>,
    /// When it must stop passing traffic to sandboxes that others may have replaced. None: it may not pass any yet.
    serves_until: Option<ServerTime>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    epoch: Epoch,
    until: ServerTime,
    /// Whether the sandboxes on the machine were compared with the rows in this epoch.
    is_settled: bool,
}

/// What a server has to do next about its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Read the epoch, and begin the next one.
    Join,
    /// Compare the machine with the rows, and remove what was given up.
    Settle(Epoch),
    /// Renew the lease at its pace.
    Renew(Epoch),
}

impl OwnLease {
    pub fn new(terms: Terms) -> Self {
        Self { terms, held: None, known: Epoch::default(), asked_after: None, serves_until: None }
    }

    pub fn next_step(&self) -> NextStep {
        match self.held {
            None => NextStep::Join,
            Some(Held { epoch, is_settled: false, .. }) => NextStep::Settle(epoch),
            Some(Held { epoch, .. }) => NextStep::Renew(epoch),
        }
    }

    /// The server is about to ask for the epoch after this one. The answer to an earlier request no longer counts, because
    /// this one may have ended its epoch when the answer comes.
    pub fn asks_to_join(&mut self, after: Epoch) {
        self.held = None;
        self.asked_after = Some(after);
    }

    /// The database has begun this epoch, by a request that was sent at this moment.
    ///
    /// The next number means that nobody has given this server up meanwhile. A gap means that somebody may have: giving up
    /// takes a number too, and so does a request to join whose answer was lost.
    pub fn joined(&mut self, epoch: Epoch, sent_at: ServerTime) {
        if self.asked_after.map(Epoch::next) != Some(epoch) {
            return;
        }
        let is_next = epoch == self.known.next();
        self.known = epoch;
        self.held = Some(Held { epoch, until: sent_at.plus(self.terms.decides_for()), is_settled: false });
        let serves_until = sent_at.plus(self.terms.serves_for());
        self.serves_until = self.serves_until.filter(|_| is_next).map(|until| until.max(serves_until));
    }

    /// The database has answered a renewal that was sent at this moment. An answer for an earlier epoch changes nothing.
    pub fn renewed(&mut self, epoch: Epoch, answer: Result<(), LeaseLost>, sent_at: ServerTime) {
        let Some(held) = self.held.as_mut().filter(|held| held.epoch == epoch) else { return };
        match answer {
            Ok(()) => {
                held.until = held.until.max(sent_at.plus(self.terms.decides_for()));
                let serves_until = sent_at.plus(self.terms.serves_for());
                self.serves_until = self.serves_until.map(|until| until.max(serves_until));
            }
            Err(LeaseLost) => self.held = None,
        }
    }

    /// What was given up in the server's name is gone from the machine.
    pub fn settled(&mut self, epoch: Epoch) {
        let Some(held) = self.held.as_mut().filter(|held| held.epoch == epoch) else { return };
        held.is_settled = true;
        // `until` is earlier than the end of the lease, so this is early enough too.
        let left = self.terms.serves_for().saturating_sub(self.terms.decides_for());
        self.serves_until = Some(held.until.plus(left));
    }

    /// The epoch in which the server may write rows: also while it still compares them with the machine.
    pub fn writes_as(&self, now: ServerTime) -> Option<Epoch> {
        self.held.filter(|held| now < held.until).map(|held| held.epoch)
    }

    /// The epoch in which the server may decide: create, resume, pause and end sandboxes.
    pub fn decides_as(&self, now: ServerTime) -> Option<Epoch> {
        self.held.filter(|held| held.is_settled && now < held.until).map(|held| held.epoch)
    }

    /// Whether the server may pass traffic to its sandboxes. It may for longer than it may decide, because others replace
    /// them only after the grace.
    pub fn serves(&self, now: ServerTime) -> bool {
        self.serves_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TERMS: Terms = Terms { lease: Duration::from_secs(10), grace: Duration::from_secs(60) };

    fn at(seconds: u64) -> ServerTime {
        ServerTime(Duration::from_secs(seconds))
    }

    fn settled(epoch: i64, sent_at: ServerTime) -> OwnLease {
        let mut lease = OwnLease::new(TERMS);
        lease.asks_to_join(Epoch(epoch - 1));
        lease.joined(Epoch(epoch), sent_at);
        lease.settled(Epoch(epoch));
        lease
    }

    #[test]
    fn a_server_decides_nothing_before_it_has_compared_its_machine_with_the_rows() {
        let mut lease = OwnLease::new(TERMS);
        assert_eq!((lease.next_step(), lease.writes_as(at(1))), (NextStep::Join, None));
        lease.asks_to_join(Epoch(0));
        lease.joined(Epoch(1), at(1));
        assert_eq!((lease.next_step(), lease.writes_as(at(2))), (NextStep::Settle(Epoch(1)), Some(Epoch(1))));
        assert_eq!((lease.decides_as(at(2)), lease.serves(at(2))), (None, false));
        lease.settled(Epoch(1));
        assert_eq!((lease.next_step(), lease.decides_as(at(2))), (NextStep::Renew(Epoch(1)), Some(Epoch(1))));
        assert!(lease.serves(at(2)));
    }

    #[test]
    fn a_server_that_hears_nothing_stops_before_its_lease_ends_and_serves_until_the_grace_does() {
        let lease = settled(1, at(0));
        assert_eq!((lease.decides_as(at(8)), lease.decides_as(at(9))), (Some(Epoch(1)), None));
        assert_eq!((lease.serves(at(68)), lease.serves(at(69))), (true, false));
    }

    #[test]
    fn an_answer_that_comes_late_counts_from_when_it_was_asked_for() {
        let mut lease = settled(1, at(0));
        lease.renewed(Epoch(1), Ok(()), at(5));
        assert_eq!((lease.decides_as(at(13)), lease.decides_as(at(14))), (Some(Epoch(1)), None));
        // Answers may arrive in another order.
        lease.renewed(Epoch(1), Ok(()), at(2));
        assert_eq!(lease.decides_as(at(13)), Some(Epoch(1)));
    }

    #[test]
    fn a_server_that_has_lost_its_lease_serves_on_only_if_it_was_not_given_up() {
        for next in [Epoch(2), Epoch(3)] {
            let mut lease = settled(1, at(0));
            lease.renewed(Epoch(1), Err(LeaseLost), at(11));
            assert_eq!(
                (lease.next_step(), lease.writes_as(at(11)), lease.serves(at(11))),
                (NextStep::Join, None, true)
            );
            lease.asks_to_join(Epoch(next.0 - 1));
            lease.joined(next, at(12));
            assert_eq!((lease.serves(at(12)), lease.decides_as(at(12))), (next == Epoch(2), None));
            lease.joined(Epoch(1), at(12));
            lease.renewed(Epoch(1), Ok(()), at(12));
            lease.settled(Epoch(1));
            assert_eq!(lease.decides_as(at(12)), None, "late answers of the old epoch change nothing");
            lease.settled(next);
            assert_eq!((lease.serves(at(12)), lease.decides_as(at(12))), (true, Some(next)));
        }
    }
}
