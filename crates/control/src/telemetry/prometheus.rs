//! The counters in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::counters::{CREATE_BOUNDS_MS, Counters};

/// Renders all counters, and the current number of sandboxes by state.
pub fn render(counters: &Counters, live: &[(&'static str, usize)], free_memory: u64) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut text, counters, live, free_memory);
    text
}

fn write_all(
    out: &mut String,
    counters: &Counters,
    live: &[(&'static str, usize)],
    free_memory: u64,
) -> std::fmt::Result {
    head(out, "isopod_requests_total", "counter", "Requests answered, by kind and status.")?;
    for ((kind, status), count) in counters.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        writeln!(out, "isopod_requests_total{{kind=\"{}\",status=\"{status}\"}} {count}", kind.text())?;
    }
    head(out, "isopod_sandboxes", "gauge", "Live sandboxes, by state.")?;
    for (state, count) in live {
        writeln!(out, "isopod_sandboxes{{state=\"{state}\"}} {count}")?;
    }
    head(out, "isopod_sandboxes_ended_total", "counter", "Sandboxes that ended, by reason.")?;
    for (reason, count) in counters.ended.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        writeln!(out, "isopod_sandboxes_ended_total{{reason=\"{reason}\"}} {count}")?;
    }
    head(out, "isopod_create_failures_total", "counter", "Create requests that were refused or failed.")?;
    writeln!(out, "isopod_create_failures_total {}", counters.create_failures.load(Ordering::Relaxed))?;
    head(out, "isopod_node_free_memory_bytes", "gauge", "Memory that is still available for new sandboxes.")?;
    writeln!(out, "isopod_node_free_memory_bytes {free_memory}")?;
    write_histogram(out, counters)
}

fn write_histogram(out: &mut String, counters: &Counters) -> std::fmt::Result {
    let name = "isopod_create_seconds";
    head(out, name, "histogram", "Time from the request for a sandbox until it answers.")?;
    let seconds = |amount: u64, per_second: u32| {
        let whole = u32::try_from(amount).map_or(f64::from(u32::MAX), f64::from);
        whole / f64::from(per_second)
    };
    for (bound, count) in CREATE_BOUNDS_MS.iter().zip(&counters.create_within) {
        writeln!(out, "{name}_bucket{{le=\"{}\"}} {}", seconds(*bound, 1000), count.load(Ordering::Relaxed))?;
    }
    let creates = counters.creates.load(Ordering::Relaxed);
    writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {creates}")?;
    let micros = counters.create_micros.load(Ordering::Relaxed);
    writeln!(out, "{name}_sum {}.{:06}", micros / 1_000_000, micros % 1_000_000)?;
    writeln!(out, "{name}_count {creates}")
}

pub(super) fn head(out: &mut String, name: &str, kind: &str, help: &str) -> std::fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}
