//! Limits how many of something each team may have at a time, so that no team takes everything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use isopod_store::TeamId;

/// The permits of all teams.
#[derive(Debug)]
pub struct PerTeamLimit {
    per_team: usize,
    /// Only teams with permits. Locked for a few instructions.
    taken: Mutex<HashMap<TeamId, usize>>,
}

/// A permit, released when it is dropped.
#[derive(Debug)]
pub struct TeamPermit {
    of: Arc<PerTeamLimit>,
    team: TeamId,
}

impl PerTeamLimit {
    /// A limit for each team.
    pub fn new(per_team: usize) -> Arc<Self> {
        Arc::new(Self { per_team, taken: Mutex::default() })
    }

    /// Returns a permit for the team, or `None` if it has reached its limit.
    pub fn take(self: &Arc<Self>, team: &TeamId) -> Option<TeamPermit> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(team.clone()).or_default();
        if *count >= self.per_team {
            return None;
        }
        *count += 1;
        Some(TeamPermit { of: Arc::clone(self), team: team.clone() })
    }
}

impl Drop for TeamPermit {
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
        let per_team_limit = PerTeamLimit::new(2);
        let (a, b) = (TeamId("a".to_owned()), TeamId("b".to_owned()));
        let first = per_team_limit.take(&a).unwrap();
        let second = per_team_limit.take(&a).unwrap();
        assert!(per_team_limit.take(&a).is_none());
        let others = per_team_limit.take(&b).unwrap();
        drop(first);
        let third = per_team_limit.take(&a).unwrap();
        assert!(per_team_limit.take(&a).is_none());
        drop((second, third, others));
        assert!(per_team_limit.taken.lock().unwrap().is_empty(), "nothing is kept of teams that have nothing");
    }
}
