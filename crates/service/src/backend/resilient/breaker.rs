//! The circuit breaker: a backend that fails repeatedly is not used for a while, and then tried with one call.
//!
//! ```text
//! closed ── consecutive failures ──▶ open ── after some time ──▶ half-open ── the trial succeeds ──▶ closed
//!                                     ▲                             │
//!                                     └─────── the trial fails ─────┘
//! ```

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::super::BackendError;
use super::BackendMetrics;

/// When the breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// How many consecutive failures open it.
    pub failures: u32,
    /// How long it stays open.
    pub open_for: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_secs(30) }
    }
}

/// Whether the backend is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// It is used.
    Closed,
    /// It is not used.
    Open,
    /// One call tries it.
    HalfOpen,
}

impl BreakerState {
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];

    /// Its name in metrics.
    pub fn text(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug)]
pub(super) struct Breaker {
    config: BreakerConfig,
    metrics: Arc<BackendMetrics>,
    /// Written before and after each call. Locked only briefly.
    now: Mutex<BreakerPhase>,
}

#[derive(Debug)]
struct BreakerPhase {
    phase: Phase,
    /// Counts changes of the phase. A call that started in an earlier phase says nothing about the current one.
    generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen,
}

/// A call that was let through. If it is dropped without a result, it does not count.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    breaker: &'a Breaker,
    generation: u64,
    outcome: Outcome,
}

/// What a call shows about the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is alive. A refusal shows that too.
    Alive,
    Failed,
    /// Neither.
    Nothing,
}

impl Breaker {
    pub(super) fn new(config: BreakerConfig, metrics: Arc<BackendMetrics>) -> Self {
        let now = BreakerPhase { phase: Phase::Closed { failures: 0 }, generation: 0 };
        Self { config, metrics, now: Mutex::new(now) }
    }

    pub(super) fn state(&self) -> BreakerState {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).phase.state()
    }

    /// Lets a call through, or returns how long none will be.
    pub(super) fn enter(&self) -> Result<Pass<'_>, Duration> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        match now.phase {
            Phase::Closed { .. } => {}
            Phase::Open { until } => {
                let left = until.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    return Err(left);
                }
                self.change(&mut now, Phase::HalfOpen);
            }
            // A trial is running, which takes as long as a call does.
            Phase::HalfOpen => return Err(RETRY_HALF_OPEN),
        }
        Ok(Pass { breaker: self, generation: now.generation, outcome: Outcome::Nothing })
    }

    fn finished(&self, generation: u64, outcome: Outcome) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if generation != now.generation {
            return;
        }
        let next = next_phase(now.phase, outcome, self.config, Instant::now());
        match next.state() == now.phase.state() {
            true => now.phase = next,
            false => self.change(&mut now, next),
        }
    }

    fn change(&self, now: &mut BreakerPhase, phase: Phase) {
        now.phase = phase;
        now.generation += 1;
        self.metrics.breaker_is(phase.state());
        tracing::warn!(
            backend = self.metrics.backend(),
            state = phase.state().text(),
            "the circuit breaker changed its state"
        );
    }
}

const RETRY_HALF_OPEN: Duration = Duration::from_secs(1);

/// The state machine.
fn next_phase(phase: Phase, outcome: Outcome, config: BreakerConfig, now: Instant) -> Phase {
    let open = Phase::Open { until: now + config.open_for };
    match (phase, outcome) {
        (Phase::Closed { .. } | Phase::HalfOpen, Outcome::Alive) => Phase::Closed { failures: 0 },
        (Phase::Closed { failures }, Outcome::Failed) if failures + 1 < config.failures => {
            Phase::Closed { failures: failures + 1 }
        }
        (Phase::Closed { .. } | Phase::HalfOpen, Outcome::Failed) => open,
        // The trial gave no result, so the next call may try.
        (Phase::HalfOpen, Outcome::Nothing) => Phase::Open { until: now },
        (Phase::Closed { .. }, Outcome::Nothing) | (Phase::Open { .. }, _) => phase,
    }
}

impl Phase {
    fn state(self) -> BreakerState {
        match self {
            Self::Closed { .. } => BreakerState::Closed,
            Self::Open { .. } => BreakerState::Open,
            Self::HalfOpen => BreakerState::HalfOpen,
        }
    }
}

impl Pass<'_> {
    pub(super) fn finish<T>(mut self, result: &Result<T, BackendError>) {
        self.outcome = match result {
            Ok(_) => Outcome::Alive,
            Err(error) if error.blames_backend() => Outcome::Failed,
            // A sandbox that does not reply shows nothing. A refusal shows that the backend is alive.
            Err(BackendError::Timeout { .. } | BackendError::Unavailable { .. } | BackendError::Internal { .. }) => {
                Outcome::Nothing
            }
            Err(_) => Outcome::Alive,
        };
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.breaker.finished(self.generation, self.outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Effect, Place};
    use super::*;

    fn down() -> Result<(), BackendError> {
        let (message, effect) = ("down".to_owned(), Effect::None);
        Err(BackendError::Unavailable { message, retry_after: None, effect, place: Place::Backend, source: None })
    }

    fn breaker() -> Breaker {
        Breaker::new(BreakerConfig::default(), Arc::new(BackendMetrics::new("test")))
    }

    fn open() -> Breaker {
        let breaker = breaker();
        for _ in 0..5 {
            breaker.enter().unwrap().finish(&down());
        }
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_it_and_one_good_call_closes_it_again() {
        let breaker = open();
        assert!(breaker.enter().unwrap_err() <= Duration::from_secs(30));
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(breaker.enter().unwrap_err(), Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        let trial = breaker.enter().unwrap();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(breaker.enter().is_err(), "one trial at a time");
        trial.finish(&Ok(()));
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.enter().unwrap().finish(&down());
        assert_eq!(breaker.state(), BreakerState::Closed, "counts from zero again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_fails_opens_it_and_one_that_is_given_up_leaves_it_to_the_next() {
        let breaker = open();
        tokio::time::advance(Duration::from_secs(30)).await;
        breaker.enter().unwrap().finish(&down());
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(breaker.enter().is_err());
        tokio::time::advance(Duration::from_secs(30)).await;
        drop(breaker.enter().unwrap());
        let next = breaker.enter().unwrap();
        next.finish(&Err::<(), _>(BackendError::not_found("x")));
        assert_eq!(breaker.state(), BreakerState::Closed, "a refusal shows that it lives");
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_and_success_in_between_keep_it_closed() {
        let breaker = breaker();
        for _ in 0..20 {
            for _ in 0..4 {
                breaker.enter().unwrap().finish(&down());
            }
            breaker.enter().unwrap().finish(&Err::<(), _>(BackendError::invalid("x")));
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        let hung = BackendError::Timeout { what: "x".into(), limit: Duration::ZERO, place: Place::Sandbox };
        let hung = Err::<(), _>(hung);
        for _ in 0..20 {
            breaker.enter().unwrap().finish(&hung);
        }
        assert_eq!(breaker.state(), BreakerState::Closed, "a sandbox that hangs is not the backend");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_from_before_says_nothing_about_now() {
        let breaker = breaker();
        let (slow_good, slow_bad) = (breaker.enter().unwrap(), breaker.enter().unwrap());
        for _ in 0..5 {
            breaker.enter().unwrap().finish(&down());
        }
        slow_good.finish(&Ok(()));
        assert_eq!(breaker.state(), BreakerState::Open);
        tokio::time::advance(Duration::from_secs(30)).await;
        let trial = breaker.enter().unwrap();
        slow_bad.finish(&down());
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        trial.finish(&Ok(()));
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
