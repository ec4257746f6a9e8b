//! The steps of a long command, with the time of each.

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<(String, Duration)>,
    notes: Vec<String>,
}

impl Steps {
    /// Runs one step, between a line that names it and a line with its time.
    pub(crate) fn time<T>(&mut self, name: &str, step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let result = step();
        let took = start.elapsed();
        let verdict = if result.is_ok() { "done" } else { "failed" };
        eprintln!("== {name}: {verdict} in {}", show(took));
        self.done.push((name.to_owned(), took));
        result
    }

    /// Adds a line below the table.
    pub(crate) fn note(&mut self, line: String) {
        self.notes.push(line);
    }

    /// Prints the table of all steps.
    pub(crate) fn print(&self) {
        eprintln!("\n{:>9}  step", "time");
        for (name, took) in &self.done {
            eprintln!("{:>9}  {name}", show(*took));
        }
        eprintln!("{:>9}  in all", show(self.done.iter().map(|(_, took)| *took).sum()));
        self.notes.iter().for_each(|note| eprintln!("{note}"));
    }
}

/// `4.2s`, `3m07s`.
pub(crate) fn show(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 { format!("{:.1}s", time.as_secs_f64()) } else { format!("{}m{:02}s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_to_read() {
        assert_eq!(show(Duration::from_millis(4210)), "4.2s");
        assert_eq!(show(Duration::from_secs(59)), "59.0s");
        assert_eq!(show(Duration::from_secs(187)), "3m07s");
    }

    #[test]
    fn a_step_that_fails_is_recorded_with_its_time() {
        let mut steps = Steps::default();
        let result: Result<(), _> = steps.time("one", || Err("no".to_owned()));
        assert_eq!(result, Err("no".to_owned()));
        assert_eq!(steps.done.len(), 1);
    }
}
