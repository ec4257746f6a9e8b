//! The attempts of one call: how many there are, and the waits between them.

use std::time::Duration;

use tokio::time::Instant;

use super::super::{BackendError, Effect, Place};
use super::{ResilienceConfig, Resilient, Verb};

/// When a failed call may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It is idempotent.
    Always,
    /// Only if the first attempt certainly had no effect.
    IfNotDone,
    /// It cannot be sent again.
    Never,
}

pub(super) struct Tries<'a> {
    resilient: &'a Resilient,
    verb: Verb,
    repeat: Repeat,
    made: u32,
}

impl<'a> Tries<'a> {
    pub(super) fn new(resilient: &'a Resilient, verb: Verb, repeat: Repeat) -> Self {
        Self { resilient, verb, repeat, made: 0 }
    }

    /// Makes one attempt, if the breaker allows it, within its deadline.
    pub(super) async fn attempt<T>(
        &mut self,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        self.made += 1;
        let Resilient { inner, breaker, metrics, config, .. } = self.resilient;
        let pass = breaker.enter().map_err(|retry_after| {
            metrics.called(self.verb, "breaker_open", Duration::ZERO);
            BackendError::BreakerOpen { backend: inner.name(), retry_after }
        })?;
        let started = Instant::now();
        let result = within(self.verb, config, call).await;
        pass.finish(&result);
        let outcome = result.as_ref().map_or_else(|error| error.kind().text(), |_| "ok");
        metrics.called(self.verb, outcome, started.elapsed());
        result
    }

    /// Waits for the next attempt, or returns the error if there is none.
    pub(super) async fn wait_or_fail(&mut self, error: BackendError) -> Result<(), BackendError> {
        let config = &self.resilient.config;
        if self.made >= config.tries || !may_repeat(self.repeat, &error) {
            return Err(error);
        }
        let Some(wait) = wait_before(self.made, error.retry_after(), config, roll()) else { return Err(error) };
        tracing::debug!(
            verb = self.verb.text(),
            error = isopod_wire::error_chain(&error),
            ?wait,
            "retrying a call to the backend"
        );
        self.resilient.metrics.retried(self.verb);
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// Applies the deadline. An upload has none: its sender checks that it makes progress. Code has its own timeout.
async fn within<T>(
    verb: Verb,
    config: &ResilienceConfig,
    call: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let limit = match verb {
        Verb::WriteFile | Verb::RunCode => return call.await,
        Verb::Create => config.create_timeout,
        _ => config.call_timeout,
    };
    // A command or file that does not reply says nothing about other sandboxes.
    let place = if matches!(verb, Verb::Execute | Verb::ReadFile) { Place::Sandbox } else { Place::Backend };
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(BackendError::Timeout { what: format!("the backend's {}", verb.text()), limit, place }),
    }
}

/// Only transient failures are retried, and not while the breaker is open.
fn may_repeat(repeat: Repeat, error: &BackendError) -> bool {
    let is_safe = match repeat {
        Repeat::Always => true,
        Repeat::IfNotDone => error.effect() == Effect::None,
        Repeat::Never => false,
    };
    is_safe && error.is_transient() && !matches!(error, BackendError::BreakerOpen { .. })
}

/// The wait after this many attempts. `None` if the backend requests a longer wait than the caller should have.
fn wait_before(made: u32, asked: Option<Duration>, config: &ResilienceConfig, roll: f64) -> Option<Duration> {
    let step = config.first_wait.saturating_mul(2u32.saturating_pow(made.saturating_sub(1)));
    // Spread the retries, so that callers that failed together do not all return together.
    let own = step.mul_f64(1.0 + roll.clamp(0.0, 1.0)).min(config.max_wait);
    match asked {
        Some(asked) if asked > config.max_retry_after => None,
        Some(asked) => Some(own.max(asked.saturating_add(own / 8))),
        None => Some(own),
    }
}

/// A random number from 0 to 1, good enough to spread callers in time.
fn roll() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    proptest! {
        #[test]
        fn waits_grow_from_one_to_ten_seconds(made in 1u32..20, roll in 0.0f64..=1.0) {
            let config = ResilienceConfig::default();
            let wait = wait_before(made, None, &config, roll).unwrap();
            prop_assert!(wait >= SECOND && wait <= 10 * SECOND);
            prop_assert!(wait >= wait_before(made, None, &config, 0.0).unwrap());
            prop_assert!(wait_before(made + 1, None, &config, roll).unwrap() >= wait);
        }

        #[test]
        fn a_backend_that_says_when_is_never_asked_sooner(seconds in 0u64..40, roll in 0.0f64..=1.0) {
            let config = ResilienceConfig::default();
            let asked = Duration::from_secs(seconds);
            match wait_before(1, Some(asked), &config, roll) {
                Some(wait) => prop_assert!(wait >= asked && wait >= SECOND),
                None => prop_assert!(asked > config.max_retry_after),
            }
        }
    }

    #[test]
    fn only_transient_failures_are_repeated_and_commands_only_when_not_started() {
        let unavailable = |effect| BackendError::Unavailable {
            message: String::new(),
            retry_after: None,
            effect,
            place: Place::Backend,
            source: None,
        };
        assert!(may_repeat(Repeat::Always, &unavailable(Effect::Unknown)));
        assert!(!may_repeat(Repeat::IfNotDone, &unavailable(Effect::Unknown)));
        assert!(may_repeat(Repeat::IfNotDone, &unavailable(Effect::None)));
        assert!(!may_repeat(Repeat::Never, &unavailable(Effect::None)));
        let quota = |retry_after| BackendError::Quota { message: String::new(), retry_after };
        assert!(!may_repeat(Repeat::Always, &quota(None)));
        assert!(may_repeat(Repeat::Always, &quota(Some(SECOND))));
        assert!(!may_repeat(Repeat::Always, &BackendError::BreakerOpen { backend: "x", retry_after: SECOND }));
        assert!(!may_repeat(Repeat::Always, &BackendError::internal("x")));
    }
}
