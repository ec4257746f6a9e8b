//! So many of something at a time for each team, so that none of them takes it all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use isopod_store::TeamId;

/// What all teams have taken.
#[derive(Debug)]
pub(crate) struct Shares {
    per_team: usize,
    /// Only teams that have something. Held for a few instructions.
    taken: Mutex<HashMap<TeamId, usize>>,
}

/// One that is taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    team: TeamId,
}

impl Shares {
    pub(crate) fn new(per_team: usize) -> Arc<Self> {
        Arc::new(Self { per_team, taken: Mutex::default() })
    }

    /// One for the team; none if it has all of its own.
    pub(crate) fn take(self: &Arc<Self>, team: &TeamId) -> Option<Share> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(team.clone()).or_default();
        if *count >= self.per_team {
            return None;
        }
        *count += 1;
        Some(Share { of: Arc::clone(self), team: team.clone() })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.team) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.team)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_has_its_own_share_and_gets_back_what_it_gives_back() {
        let shares = Shares::new(2);
        let (a, b) = (TeamId("a".to_owned()), TeamId("b".to_owned()));
        let first = shares.take(&a).unwrap();
        let second = shares.take(&a).unwrap();
        assert!(shares.take(&a).is_none());
        let others = shares.take(&b).unwrap();
        drop(first);
        let third = shares.take(&a).unwrap();
        assert!(shares.take(&a).is_none());
        drop((second, third, others));
        assert!(shares.taken.lock().unwrap().is_empty(), "nothing is kept of teams that have nothing");
    }
}
