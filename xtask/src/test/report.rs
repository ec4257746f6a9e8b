//! The end of a run: what was slow, what failed, and how to run that again.

use super::lanes::Outcome;
use crate::steps::show;

const SLOWEST: usize = 10;

pub(crate) fn print(outcomes: &[Outcome]) {
    let mut by_time: Vec<&Outcome> = outcomes.iter().collect();
    by_time.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    if by_time.len() > 1 {
        eprintln!("\n{:>9}  slowest", "time");
        for outcome in by_time.iter().take(SLOWEST) {
            eprintln!("{:>9}  {} {}", show(outcome.took), outcome.job.name, outcome.summary);
        }
    }
    let tests: usize = outcomes.iter().filter_map(|outcome| outcome.summary.tests).sum();
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    eprintln!("\n{tests} tests in {} jobs, {failed} of them failed", outcomes.len());
}

/// Returns an error that names what failed, with the command to run each again.
pub(crate) fn verdict(outcomes: &[Outcome]) -> Result<(), String> {
    let again: Vec<String> = outcomes.iter().filter(|outcome| !outcome.passed).flat_map(commands).collect();
    if again.is_empty() { Ok(()) } else { Err(format!("failed; to run it again:\n  {}", again.join("\n  "))) }
}

fn commands(outcome: &Outcome) -> Vec<String> {
    let job = &outcome.job.name;
    // The names of tests do not contain tiers and databases.
    let (binary, variant) = job.split_once('@').unwrap_or((job, ""));
    let environment = if variant == "postgres" { "ISOPOD_TEST_STORE=postgres " } else { "" };
    let tests = &outcome.summary.failed;
    if tests.is_empty() {
        return vec![format!("{environment}cargo xtask test {binary}")];
    }
    // The tests of a joined binary begin with the name of their file, which the job's name ends with.
    let file = outcome.job.module.as_ref().map_or(String::new(), |module| format!("{module}::"));
    let inside = |test: &str| test.strip_prefix(&file).unwrap_or(test).to_owned();
    tests.iter().map(|test| format!("{environment}cargo xtask test {binary}::{}", inside(test))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test::jobs::Job;
    use crate::test::log::Summary;

    fn outcome(name: &str, passed: bool, failed: &[&str]) -> Outcome {
        let failed = failed.iter().map(|name| (*name).to_owned()).collect();
        let summary = Summary { failed, ..Summary::default() };
        Outcome { job: Job::for_test(name, 1.0, None), took: Duration::from_secs(1), passed, summary }
    }

    #[test]
    fn what_failed_comes_with_the_command_to_run_it_again() {
        assert_eq!(verdict(&[outcome("cli::run", true, &[])]), Ok(()));
        let outcomes = [
            outcome("cli::run", true, &[]),
            outcome("cli::tls", false, &["a_key", "b_key"]),
            outcome("control::runs@postgres", false, &["one"]),
            outcome("suite::sdk", false, &[]),
        ];
        let mut joined = outcome("server::runs", false, &["runs::two"]);
        joined.job.module = Some("runs".to_owned());
        let outcomes: Vec<Outcome> = outcomes.into_iter().chain([joined]).collect();
        let told = verdict(&outcomes).expect_err("four failed");
        let told: Vec<&str> = told.lines().skip(1).map(str::trim).collect();
        assert_eq!(
            told,
            [
                "cargo xtask test cli::tls::a_key",
                "cargo xtask test cli::tls::b_key",
                "ISOPOD_TEST_STORE=postgres cargo xtask test control::runs::one",
                "cargo xtask test suite::sdk",
                "cargo xtask test server::runs::two",
            ]
        );
    }
}
