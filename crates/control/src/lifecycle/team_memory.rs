//! Limits the memory that the collected output of one team's calls takes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use isopod_guest_client::MemoryBudget;
use isopod_store::TeamId;

/// What all calls of one team may collect at the same time. More output is dropped, and the reply says so.
const MAX_COLLECTED: usize = 256 << 20;

/// The budgets of all teams.
#[derive(Debug, Default)]
pub struct TeamMemory(Mutex<HashMap<TeamId, MemoryBudget>>);

impl TeamMemory {
    /// The budget of this team.
    pub fn of(&self, team: &TeamId) -> MemoryBudget {
        let mut teams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        teams.entry(team.clone()).or_insert_with(|| MemoryBudget::new(MAX_COLLECTED)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_has_one_budget_and_another_team_its_own() {
        let (teams, one, other) = (TeamMemory::default(), TeamId("a".to_owned()), TeamId("b".to_owned()));
        let mut held = teams.of(&one).reserve();
        assert!(held.grow(MAX_COLLECTED));
        assert!(!teams.of(&one).reserve().grow(MAX_COLLECTED));
        assert!(teams.of(&other).reserve().grow(MAX_COLLECTED));
    }
}
