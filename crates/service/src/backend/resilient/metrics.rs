//! The metrics of a backend, and their Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::BreakerState;

/// A call to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// Create a sandbox.
    Create,
    /// Get its state.
    Status,
    /// List sandboxes.
    List,
    /// Start a command.
    Execute,
    /// Run code in its interpreter.
    RunCode,
    /// Get the host name of a port.
    Host,
    /// Write a file.
    WriteFile,
    /// Read a file.
    ReadFile,
    /// Pause a sandbox.
    Pause,
    /// Resume a sandbox.
    Resume,
    /// Set its timeout.
    SetTimeout,
    /// End a sandbox.
    Destroy,
}

impl Verb {
    /// Its name in metrics.
    pub fn text(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Status => "status",
            Self::List => "list",
            Self::Execute => "execute",
            Self::RunCode => "run_code",
            Self::Host => "host",
            Self::WriteFile => "write_file",
            Self::ReadFile => "read_file",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::SetTimeout => "set_timeout",
            Self::Destroy => "destroy",
        }
    }
}

/// The counters of one backend.
#[derive(Debug)]
pub struct BackendMetrics {
    backend: &'static str,
    /// Written after each attempt. Locked only briefly.
    counts: Mutex<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// By verb and outcome: the number of attempts and their total duration.
    calls: BTreeMap<(Verb, &'static str), (u64, Duration)>,
    retries: BTreeMap<Verb, u64>,
    breaker: BreakerState,
    opened: u64,
}

impl BackendMetrics {
    pub(super) fn new(backend: &'static str) -> Self {
        let counts =
            Counts { calls: BTreeMap::new(), retries: BTreeMap::new(), breaker: BreakerState::Closed, opened: 0 };
        Self { backend, counts: Mutex::new(counts) }
    }

    pub(super) fn backend(&self) -> &'static str {
        self.backend
    }

    pub(super) fn called(&self, verb: Verb, outcome: &'static str, took: Duration) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let (tries, all) = counts.calls.entry((verb, outcome)).or_default();
        *tries += 1;
        *all = all.saturating_add(took);
    }

    pub(super) fn retried(&self, verb: Verb) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).retries.entry(verb).or_default() += 1;
    }

    pub(super) fn breaker_is(&self, state: BreakerState) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.breaker = state;
        counts.opened += u64::from(state == BreakerState::Open);
    }

    /// How many attempts of this verb had this outcome: `ok`, or the name of an error kind.
    pub fn tries(&self, verb: Verb, outcome: &str) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.calls.iter().filter(|((of, with), _)| *of == verb && *with == outcome).map(|(_, (tries, _))| tries).sum()
    }

    /// How often this verb was retried.
    pub fn retries(&self, verb: Verb) -> u64 {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).retries.get(&verb).copied().unwrap_or(0)
    }

    /// Appends the lines in Prometheus' text format.
    pub(crate) fn render(&self, out: &mut String) {
        // Writing to a string does not fail.
        let _ = self.write(out);
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let backend = self.backend;
        head(out, "isopod_backend_calls_total", "counter", "Attempts of calls to the service's backend.")?;
        for ((verb, outcome), (tries, _)) in &counts.calls {
            let verb = verb.text();
            writeln!(
                out,
                "isopod_backend_calls_total{{backend=\"{backend}\",verb=\"{verb}\",outcome=\"{outcome}\"}} {tries}"
            )?;
        }
        head(out, "isopod_backend_call_seconds_total", "counter", "Duration of these attempts.")?;
        for ((verb, outcome), (_, took)) in &counts.calls {
            let (verb, took) = (verb.text(), took.as_secs_f64());
            writeln!(
                out,
                "isopod_backend_call_seconds_total{{backend=\"{backend}\",verb=\"{verb}\",outcome=\"{outcome}\"}} {took}"
            )?;
        }
        head(out, "isopod_backend_retries_total", "counter", "Calls that were retried.")?;
        for (verb, count) in &counts.retries {
            let verb = verb.text();
            writeln!(out, "isopod_backend_retries_total{{backend=\"{backend}\",verb=\"{verb}\"}} {count}")?;
        }
        head(out, "isopod_backend_breaker_state", "gauge", "1 for the current state of the breaker.")?;
        for state in BreakerState::ALL {
            let (is, state) = (u8::from(state == counts.breaker), state.text());
            writeln!(out, "isopod_backend_breaker_state{{backend=\"{backend}\",state=\"{state}\"}} {is}")?;
        }
        head(out, "isopod_backend_breaker_opened_total", "counter", "How often the breaker opened.")?;
        writeln!(out, "isopod_backend_breaker_opened_total{{backend=\"{backend}\"}} {}", counts.opened)
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) -> std::fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_breakers_state_and_the_calls_are_visible() {
        let metrics = BackendMetrics::new("remote");
        metrics.called(Verb::Create, "ok", Duration::from_millis(1500));
        metrics.called(Verb::Create, "timeout", Duration::from_secs(60));
        metrics.retried(Verb::Create);
        metrics.breaker_is(BreakerState::Open);
        let mut text = String::new();
        metrics.render(&mut text);
        for line in [
            "isopod_backend_calls_total{backend=\"remote\",verb=\"create\",outcome=\"ok\"} 1",
            "isopod_backend_call_seconds_total{backend=\"remote\",verb=\"create\",outcome=\"ok\"} 1.5",
            "isopod_backend_retries_total{backend=\"remote\",verb=\"create\"} 1",
            "isopod_backend_breaker_state{backend=\"remote\",state=\"open\"} 1",
            "isopod_backend_breaker_state{backend=\"remote\",state=\"closed\"} 0",
            "isopod_backend_breaker_opened_total{backend=\"remote\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
