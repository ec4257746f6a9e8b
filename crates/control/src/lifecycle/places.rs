//! How much a team may have: places for running sandboxes and a budget of creates per second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_store::TeamId;

/// What one team may use.
#[derive(Clone, Copy, Debug)]
pub struct TeamLimits {
    /// Sandboxes that run at the same time.
    pub concurrent: u32,
    /// Creates per second in the long run.
    pub creates_per_second: u32,
    /// Creates at once.
    pub create_burst: u32,
}

/// The books of all teams.
#[derive(Debug)]
pub(crate) struct Places {
    limits: TeamLimits,
    /// Written by whoever takes or gives back; held for a few instructions.
    teams: Mutex<HashMap<TeamId, Book>>,
}

/// One running sandbox's place; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    team: TeamId,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// Too many run.
    #[error("you have reached the maximum number of concurrent sandboxes ({0})")]
    Concurrent(u32),
    /// Too many were made just now.
    #[error("you have reached the maximum rate of sandbox creations ({per_second} per second)")]
    Rate { per_second: u32, wait: Duration },
}

#[derive(Debug)]
struct Book {
    taken: u32,
    /// Creates that may be made at once; fractions fill up with time.
    budget: f64,
    counted_at: Instant,
}

impl Default for TeamLimits {
    fn default() -> Self {
        Self { concurrent: 1000, creates_per_second: 200, create_burst: 1000 }
    }
}

impl Places {
    pub(crate) fn new(limits: TeamLimits) -> Arc<Self> {
        Arc::new(Self { limits, teams: Mutex::default() })
    }

    /// Takes a place for a new sandbox, and pays for it from the budget.
    pub(crate) fn take_for_create(self: &Arc<Self>, team: &TeamId) -> Result<Place, NoPlace> {
        self.with_book(team, |book, limits| {
            book.check_concurrent(limits)?;
            book.pay(limits)?;
            book.taken += 1;
            Ok(())
        })?;
        Ok(Place { places: Arc::clone(self), team: team.clone() })
    }

    /// Takes a place for a sandbox that runs again.
    pub(crate) fn take_for_resume(self: &Arc<Self>, team: &TeamId) -> Result<Place, NoPlace> {
        self.with_book(team, |book, limits| {
            book.check_concurrent(limits)?;
            book.taken += 1;
            Ok(())
        })?;
        Ok(Place { places: Arc::clone(self), team: team.clone() })
    }

    /// Takes a place for a sandbox that runs whether there is a place or not.
    pub(crate) fn take_for_adoption(self: &Arc<Self>, team: &TeamId) -> Place {
        self.with_book(team, |book, _| book.taken += 1);
        Place { places: Arc::clone(self), team: team.clone() }
    }

    fn with_book<T>(&self, team: &TeamId, act: impl FnOnce(&mut Book, &TeamLimits) -> T) -> T {
        let mut teams = self.teams.lock().unwrap_or_else(PoisonError::into_inner);
        let book = teams.entry(team.clone()).or_insert_with(|| Book {
            taken: 0,
            budget: f64::from(self.limits.create_burst),
            counted_at: Instant::now(),
        });
        act(book, &self.limits)
    }
}

impl Book {
    fn check_concurrent(&self, limits: &TeamLimits) -> Result<(), NoPlace> {
        if self.taken >= limits.concurrent {
            return Err(NoPlace::Concurrent(limits.concurrent));
        }
        Ok(())
    }

    fn pay(&mut self, limits: &TeamLimits) -> Result<(), NoPlace> {
        let now = Instant::now();
        let per_second = f64::from(limits.creates_per_second);
        let gained = now.duration_since(self.counted_at).as_secs_f64() * per_second;
        self.budget = (self.budget + gained).min(f64::from(limits.create_burst));
        self.counted_at = now;
        if self.budget < 1.0 {
            let wait = Duration::try_from_secs_f64((1.0 - self.budget) / per_second).unwrap_or(Duration::from_secs(1));
            return Err(NoPlace::Rate { per_second: limits.creates_per_second, wait });
        }
        self.budget -= 1.0;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.with_book(&self.team, |book, _| book.taken = book.taken.saturating_sub(1));
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
        let places = Places::new(TeamLimits { concurrent: 1, creates_per_second: 100, create_burst: 100 });
        let first = places.take_for_create(&team("a")).unwrap();
        assert_eq!(places.take_for_create(&team("a")).unwrap_err(), NoPlace::Concurrent(1));
        assert!(places.take_for_create(&team("b")).is_ok(), "teams have books of their own");
        drop(first);
        assert!(places.take_for_create(&team("a")).is_ok());
    }

    #[test]
    fn creates_beyond_the_burst_are_refused_with_the_time_to_wait() {
        let places = Places::new(TeamLimits { concurrent: 100, creates_per_second: 1, create_burst: 2 });
        let _two = [places.take_for_create(&team("a")).unwrap(), places.take_for_create(&team("a")).unwrap()];
        let Err(NoPlace::Rate { wait, .. }) = places.take_for_create(&team("a")) else { panic!("not refused") };
        assert!(wait <= Duration::from_secs(1) && wait > Duration::ZERO);
    }
}
