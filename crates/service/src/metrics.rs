//! The metrics of the service, in Prometheus' text format. `metrics_text` writes the whole page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct ServiceMetrics {
    /// By action and code.
    operations: Counts,
    /// By outcome.
    commands: Counts,
    /// By kind.
    failures: Counts,
    /// By reason.
    ended: Counts,
    creates: Histogram,
    executions: Histogram,
}

/// Counters with one or two labels in one text, ready to be printed.
#[derive(Debug, Default)]
struct Counts(Mutex<BTreeMap<String, u64>>);

impl Counts {
    fn add(&self, labels: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(labels).or_default() += 1;
    }

    fn print(&self, out: &mut String, name: &str, help: &str) {
        head(out, name, "counter", help);
        for (labels, count) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "{name}{{{labels}}} {count}");
        }
    }
}

/// Upper bounds in milliseconds.
const BOUNDS_MS: [u64; 14] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 30_000, 60_000, 300_000];

#[derive(Debug, Default)]
struct Histogram {
    within: [AtomicU64; BOUNDS_MS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        for (bound, count) in BOUNDS_MS.iter().zip(&self.within) {
            if micros <= bound * 1000 {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn print(&self, out: &mut String, name: &str, help: &str) {
        head(out, name, "histogram", help);
        for (bound, count) in BOUNDS_MS.iter().zip(&self.within) {
            let (whole, rest) = (bound / 1000, bound % 1000);
            let _ = writeln!(out, "{name}_bucket{{le=\"{whole}.{rest:03}\"}} {}", count.load(Ordering::Relaxed));
        }
        let (count, micros) = (self.count.load(Ordering::Relaxed), self.micros.load(Ordering::Relaxed));
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{name}_sum {}.{:06}\n{name}_count {count}", micros / 1_000_000, micros % 1_000_000);
    }
}

/// Writes the header of a metric. Writing to a string cannot fail, here and above.
pub(crate) fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

impl ServiceMetrics {
    /// All counters, in Prometheus' text format.
    pub(crate) fn print(&self, out: &mut String) {
        self.operations.print(out, "isopod_service_operations_total", "Operations, by action and code.");
        self.commands.print(out, "isopod_service_commands_total", "Commands run, by outcome.");
        self.failures.print(out, "isopod_service_backend_failures_total", "Backend failures, by kind.");
        self.ended.print(out, "isopod_service_ended_total", "Sandboxes that ended, by reason.");
        self.creates.print(out, "isopod_service_create_seconds", "Time that a create took.");
        self.executions.print(out, "isopod_service_command_seconds", "Time that a command ran.");
    }

    pub(crate) fn operation(&self, action: &str, code: &str) {
        self.operations.add(format!("action=\"{action}\",code=\"{code}\""));
    }

    pub(crate) fn command(&self, outcome: &str, took: Duration) {
        self.commands.add(format!("outcome=\"{outcome}\""));
        self.executions.add(took);
    }

    pub(crate) fn failure(&self, kind: &str) {
        self.failures.add(format!("kind=\"{kind}\""));
    }

    pub(crate) fn created(&self, took: Duration) {
        self.creates.add(took);
    }

    pub(crate) fn ended(&self, reason: &str) {
        self.ended.add(format!("reason=\"{reason}\""));
    }
}
