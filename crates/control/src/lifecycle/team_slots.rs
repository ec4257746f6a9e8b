//! Enforces the limits of teams: slots for running sandboxes and a rate limit for creates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_store::TeamId;

/// The limits of one team.
#[derive(Clone, Copy, Debug)]
pub struct TeamLimits {
    /// Running sandboxes at the same time.
    pub concurrent: u32,
    /// The sustained rate of creates per second.
    pub creates_per_second: u32,
    /// The maximum burst of creates.
    pub create_burst: u32,
    /// Snapshots that are kept.
    pub snapshots: u32,
    /// What the memory of its snapshots may take on disk, in bytes.
    pub snapshot_memory: Option<u64>,
    /// What the files of its snapshots may take on disk, in bytes.
    pub snapshot_disk: Option<u64>,
}

/// The slots of all teams.
#[derive(Debug)]
pub(crate) struct TeamSlots {
    limits: TeamLimits,
    /// Locked for a few instructions, when a slot is taken or released.
    teams: Mutex<HashMap<TeamId, TeamUsage>>,
}

/// The slot of one running sandbox. Dropping it releases it.
#[derive(Debug)]
pub(crate) struct TeamSlot {
    slots: Arc<TeamSlots>,
    team: TeamId,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TeamLimitReached {
    /// Too many sandboxes are running.
    #[error("you have reached the maximum number of concurrent sandboxes ({0})")]
    Concurrent(u32),
    /// Too many sandboxes were created recently.
    #[error("you have reached the maximum rate of sandbox creations ({per_second} per second)")]
    Rate { per_second: u32, wait: Duration },
}

#[derive(Debug)]
struct TeamUsage {
    taken: u32,
    /// The tokens of the rate limit, which refill over time.
    budget: f64,
    counted_at: Instant,
}

impl Default for TeamLimits {
    fn default() -> Self {
        Self {
            concurrent: 1000,
            creates_per_second: 200,
            create_burst: 1000,
            snapshots: 100,
            snapshot_memory: None,
            snapshot_disk: None,
        }
    }
}

impl TeamSlots {
    pub(crate) fn new(limits: TeamLimits) -> Arc<Self> {
        Arc::new(Self { limits, teams: Mutex::default() })
    }

    /// Takes a slot and a token of the rate limit for a new sandbox. `concurrent` is the team's own limit, if it has
    /// one.
    pub(crate) fn take_for_create(
        self: &Arc<Self>,
        team: &TeamId,
        concurrent: Option<u32>,
    ) -> Result<TeamSlot, TeamLimitReached> {
        self.with_usage(team, |usage, limits| {
            usage.check_concurrent(concurrent.unwrap_or(limits.concurrent))?;
            usage.pay(limits)?;
            usage.taken += 1;
            Ok(())
        })?;
        Ok(TeamSlot { slots: Arc::clone(self), team: team.clone() })
    }

    /// Takes a slot for a sandbox that is resumed.
    pub(crate) fn take_for_resume(
        self: &Arc<Self>,
        team: &TeamId,
        concurrent: Option<u32>,
    ) -> Result<TeamSlot, TeamLimitReached> {
        self.with_usage(team, |usage, limits| {
            usage.check_concurrent(concurrent.unwrap_or(limits.concurrent))?;
            usage.taken += 1;
            Ok(())
        })?;
        Ok(TeamSlot { slots: Arc::clone(self), team: team.clone() })
    }

    /// Takes a slot for a sandbox that already runs, even if the limit is exceeded.
    pub(crate) fn take_for_adoption(self: &Arc<Self>, team: &TeamId) -> TeamSlot {
        self.with_usage(team, |usage, _| usage.taken += 1);
        TeamSlot { slots: Arc::clone(self), team: team.clone() }
    }

    /// The number of slots that a team has taken.
    pub(crate) fn taken(&self, team: &TeamId) -> u32 {
        self.with_usage(team, |usage, _| usage.taken)
    }

    fn with_usage<T>(&self, team: &TeamId, act: impl FnOnce(&mut TeamUsage, &TeamLimits) -> T) -> T {
        let mut teams = self.teams.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = teams.entry(team.clone()).or_insert_with(|| TeamUsage {
            taken: 0,
            budget: f64::from(self.limits.create_burst),
            counted_at: Instant::now(),
        });
        act(usage, &self.limits)
    }
}

impl TeamUsage {
    fn check_concurrent(&self, limit: u32) -> Result<(), TeamLimitReached> {
        if self.taken >= limit {
            return Err(TeamLimitReached::Concurrent(limit));
        }
        Ok(())
    }

    fn pay(&mut self, limits: &TeamLimits) -> Result<(), TeamLimitReached> {
        let now = Instant::now();
        let per_second = f64::from(limits.creates_per_second);
        let gained = now.duration_since(self.counted_at).as_secs_f64() * per_second;
        self.budget = (self.budget + gained).min(f64::from(limits.create_burst));
        self.counted_at = now;
        if self.budget < 1.0 {
            let wait = Duration::try_from_secs_f64((1.0 - self.budget) / per_second).unwrap_or(Duration::from_secs(1));
            return Err(TeamLimitReached::Rate { per_second: limits.creates_per_second, wait });
        }
        self.budget -= 1.0;
        Ok(())
    }
}

impl Drop for TeamSlot {
    fn drop(&mut self) {
        self.slots.with_usage(&self.team, |usage, _| usage.taken = usage.taken.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(name: &str) -> TeamId {
        TeamId(name.to_owned())
    }

    #[test]
    fn a_full_team_is_refused_until_a_place_is_given_back() {
        let slots = TeamSlots::new(TeamLimits {
            concurrent: 1,
            creates_per_second: 100,
            create_burst: 100,
            ..Default::default()
        });
        let first = slots.take_for_create(&team("a"), None).unwrap();
        assert_eq!(slots.take_for_create(&team("a"), None).unwrap_err(), TeamLimitReached::Concurrent(1));
        assert!(slots.take_for_create(&team("b"), None).is_ok(), "each team has slots of its own");
        drop(first);
        assert!(slots.take_for_create(&team("a"), None).is_ok());
    }

    #[test]
    fn a_teams_own_limit_counts_instead_of_the_servers() {
        let slots = TeamSlots::new(TeamLimits {
            concurrent: 2,
            creates_per_second: 100,
            create_burst: 100,
            ..Default::default()
        });
        assert_eq!(slots.take_for_create(&team("a"), Some(0)).unwrap_err(), TeamLimitReached::Concurrent(0));
        let _three = [(); 3].map(|()| slots.take_for_create(&team("a"), Some(3)).unwrap());
        assert_eq!(slots.take_for_resume(&team("a"), Some(3)).unwrap_err(), TeamLimitReached::Concurrent(3));
        assert_eq!((slots.taken(&team("a")), slots.taken(&team("b"))), (3, 0));
    }

    #[test]
    fn creates_beyond_the_burst_are_refused_with_the_time_to_wait() {
        let slots = TeamSlots::new(TeamLimits {
            concurrent: 100,
            creates_per_second: 1,
            create_burst: 2,
            ..Default::default()
        });
        let _two = [slots.take_for_create(&team("a"), None).unwrap(), slots.take_for_create(&team("a"), None).unwrap()];
        let Err(TeamLimitReached::Rate { wait, .. }) = slots.take_for_create(&team("a"), None) else {
            panic!("not refused")
        };
        assert!(wait <= Duration::from_secs(1) && wait > Duration::ZERO);
    }
}
