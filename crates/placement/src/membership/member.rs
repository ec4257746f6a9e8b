//! The database's side: a server's row, and what the row allows at a moment by the database's clock. The statements in
//! `isopod-store` do the same in SQL, and a test there compares them with these functions.

use super::time::{DatabaseTime, Epoch, Terms};

/// What the database knows about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub epoch: Epoch,
    pub lease_until: DatabaseTime,
    pub terms: Terms,
    /// Whether others have ended its sandboxes since it last joined.
    pub is_given_up: bool,
}

/// How others treat a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Its lease holds.
    Present,
    /// Its lease has run out. Its sandboxes may still run.
    Unreachable,
    /// Its sandboxes were ended in its name.
    GivenUp,
}

/// The lease has run out, or another epoch has begun. The server must read its epoch and join again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease of this server has run out")]
pub struct LeaseLost;

/// Why a server is not given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GiveUpRefused {
    #[error("the grace of the server is not over")]
    InGrace,
    #[error("the server was given up before")]
    Already,
}

impl Member {
    /// A server that has never joined.
    pub fn new(terms: Terms, now: DatabaseTime) -> Self {
        Self { epoch: Epoch(0), lease_until: now, terms, is_given_up: false }
    }

    pub fn standing(&self, now: DatabaseTime) -> Standing {
        if self.is_given_up {
            return Standing::GivenUp;
        }
        if now <= self.lease_until { Standing::Present } else { Standing::Unreachable }
    }

    /// Begins a new epoch after the one that the server has read. Every server does this when it starts, and when it has lost
    /// its lease. A request to join that was held up on its way, and arrives after a later one, is refused: otherwise it would
    /// end the epoch in which the server now decides.
    pub fn join(&mut self, after: Epoch, now: DatabaseTime) -> Result<Epoch, LeaseLost> {
        if self.epoch != after {
            return Err(LeaseLost);
        }
        self.epoch = self.epoch.next();
        self.lease_until = now.plus(self.terms.lease);
        self.is_given_up = false;
        Ok(self.epoch)
    }

    /// Renews a lease that still holds.
    pub fn renew(&mut self, epoch: Epoch, now: DatabaseTime) -> Result<(), LeaseLost> {
        if !self.allows(epoch, now) {
            return Err(LeaseLost);
        }
        self.lease_until = now.plus(self.terms.lease);
        Ok(())
    }

    /// Ends the lease of a server that stops. Its sandboxes go on without it, for the grace.
    pub fn leave(&mut self, epoch: Epoch, now: DatabaseTime) -> Result<(), LeaseLost> {
        if !self.allows(epoch, now) {
            return Err(LeaseLost);
        }
        self.lease_until = DatabaseTime(now.0.saturating_sub(1));
        Ok(())
    }

    /// Whether a write of this epoch may change rows of the server.
    pub fn allows(&self, epoch: Epoch, now: DatabaseTime) -> bool {
        self.epoch == epoch && !self.is_given_up && now <= self.lease_until
    }

    /// Ends the server's epoch, so that others may end its sandboxes.
    pub fn give_up(&mut self, now: DatabaseTime) -> Result<(), GiveUpRefused> {
        if self.is_given_up {
            return Err(GiveUpRefused::Already);
        }
        if now <= self.lease_until.plus(self.terms.grace) {
            return Err(GiveUpRefused::InGrace);
        }
        self.epoch = self.epoch.next();
        self.is_given_up = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms { lease: Duration::from_secs(10), grace: Duration::from_secs(60) };

    /// What happens to a row, in this order.
    #[derive(Clone, Copy, Debug)]
    enum Call {
        Join(i64),
        Renew(i64),
        Leave(i64),
        GiveUp,
    }

    fn any_calls() -> impl Strategy<Value = Vec<(i64, Call)>> {
        let call = prop_oneof![
            (0..6_i64).prop_map(Call::Join),
            (0..6_i64).prop_map(Call::Renew),
            (0..6_i64).prop_map(Call::Leave),
            Just(Call::GiveUp)
        ];
        proptest::collection::vec((0..40_000_i64, call), 1..40)
    }

    proptest! {
        /// Two epochs never overlap, and only the newest may write.
        #[test]
        fn an_epoch_never_comes_back(calls in any_calls()) {
            let mut member = Member::new(TERMS, DatabaseTime(0));
            let (mut now, mut ended) = (DatabaseTime(0), Vec::new());
            for (passed, call) in calls {
                now = DatabaseTime(now.0 + passed);
                let before = member;
                match call {
                    Call::Join(after) => _ = member.join(Epoch(after), now),
                    Call::Renew(epoch) => prop_assert_eq!(member.renew(Epoch(epoch), now).is_ok(), before.allows(Epoch(epoch), now)),
                    Call::Leave(epoch) => _ = member.leave(Epoch(epoch), now),
                    Call::GiveUp => _ = member.give_up(now),
                }
                prop_assert!(member.epoch >= before.epoch);
                if member.epoch != before.epoch {
                    ended.push(before.epoch);
                }
                prop_assert!(ended.iter().all(|epoch| !member.allows(*epoch, now)));
            }
        }

        #[test]
        fn nobody_is_given_up_before_the_grace_is_over(calls in any_calls()) {
            let mut member = Member::new(TERMS, DatabaseTime(0));
            let mut now = DatabaseTime(0);
            for (passed, call) in calls {
                now = DatabaseTime(now.0 + passed);
                match call {
                    Call::Join(after) => _ = member.join(Epoch(after), now),
                    Call::Renew(epoch) => _ = member.renew(Epoch(epoch), now),
                    Call::Leave(epoch) => _ = member.leave(Epoch(epoch), now),
                    Call::GiveUp => {
                        let may = !member.is_given_up && now.0 - member.lease_until.0 > 60_000;
                        prop_assert_eq!(member.give_up(now).is_ok(), may);
                    }
                }
            }
        }
    }

    #[test]
    fn who_returns_in_time_gets_the_next_epoch() {
        let mut member = Member::new(TERMS, DatabaseTime(0));
        let first = member.join(Epoch(0), DatabaseTime(0)).unwrap();
        assert_eq!(member.join(Epoch(0), DatabaseTime(0)), Err(LeaseLost), "it was held up");
        assert_eq!(member.renew(first, DatabaseTime(10_000)), Ok(()));
        assert_eq!(member.renew(first, DatabaseTime(20_001)), Err(LeaseLost));
        assert_eq!(member.standing(DatabaseTime(20_001)), Standing::Unreachable);
        assert_eq!(member.give_up(DatabaseTime(80_000)), Err(GiveUpRefused::InGrace));
        assert_eq!(member.join(first, DatabaseTime(80_000)), Ok(Epoch(2)));
        assert_eq!(member.give_up(DatabaseTime(150_001)), Ok(()));
        assert_eq!(member.give_up(DatabaseTime(150_001)), Err(GiveUpRefused::Already));
        assert_eq!(
            member.join(Epoch(3), DatabaseTime(150_002)),
            Ok(Epoch(4)),
            "a gap tells the server that it was given up"
        );
    }
}
