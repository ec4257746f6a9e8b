//! Parses the output of a job: how many tests ran, and which failed.

use std::fmt;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// `None` if the output does not contain it.
    pub(crate) tests: Option<usize>,
    pub(crate) ignored: usize,
    pub(crate) failed: Vec<String>,
    /// Why the tests have no result.
    pub(crate) problem: Option<String>,
}

impl Summary {
    pub(crate) fn read(output: &str) -> Self {
        let mut summary = Self::default();
        let mut is_in_list = false;
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Parse the list at the end, because output of programs can be in the middle of a test's line.
            is_in_list = line == "failures:" || (is_in_list && line.starts_with("    ") && words.len() == 1);
            if is_in_list && line != "failures:" {
                summary.failed.extend(words.first().map(|name| (*name).to_owned()));
            }
            match words.as_slice() {
                // test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
                ["test", "result:", _, passed, "passed;", failed, "failed;", ignored, "ignored;", ..] => {
                    summary.add(number(passed) + number(failed));
                    summary.ignored += number(ignored);
                }
                // Python's unittest.
                ["Ran", count, "test" | "tests", "in", _] => summary.add(number(count)),
                // Our own suites.
                [passed, "passed,", failed, "failed"] => summary.add(number(passed) + number(failed)),
                [passed, "passed,", failed, "failed,", skipped, "skipped"] => {
                    summary.add(number(passed) + number(failed));
                    summary.ignored += number(skipped);
                }
                _ => {}
            }
        }
        summary
    }

    fn add(&mut self, tests: usize) {
        *self.tests.get_or_insert(0) += tests;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(tests) = self.tests else { return Ok(()) };
        let plural = if tests == 1 { "" } else { "s" };
        write!(formatter, "({tests} test{plural}")?;
        if self.ignored > 0 {
            write!(formatter, ", {} ignored", self.ignored)?;
        }
        formatter.write_str(")")
    }
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_of_a_test_binary_is_read() {
        let output = "running 3 tests\ntest a::b ... ok\ntest a::c ... something is said\nFAILED\ntest d ... ignored, slow\n\n\
            failures:\n\n---- a::c stdout ----\n    indented\n\nfailures:\n    a::c\n\n\
            test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s\n";
        let summary = Summary::read(output);
        assert_eq!((summary.tests, summary.ignored, summary.failed.clone()), (Some(2), 1, vec!["a::c".to_owned()]));
        assert_eq!(summary.to_string(), "(2 tests, 1 ignored)");
    }

    #[test]
    fn python_suites_are_counted_too() {
        assert_eq!(Summary::read("Ran 12 tests in 0.5s\n\nOK\n").tests, Some(12));
        assert_eq!(Summary::read("ok one\n7 passed, 2 failed\n").tests, Some(9));
        assert_eq!(Summary::read("7 passed, 2 failed, 1 skipped\n").to_string(), "(9 tests, 1 ignored)");
        assert_eq!(Summary::read("seed 4: as printed\n").to_string(), "");
    }

    #[test]
    fn what_a_python_suite_skipped_is_counted_and_shown() {
        // The last line is pytest's own, which must not be counted again.
        let output = "3 skipped: the seeds' texts are not here\n7 passed, 2 failed, 3 skipped\n\
            2 failed, 7 passed, 3 skipped in 1.20s\n";
        let summary = Summary::read(output);
        assert_eq!((summary.tests, summary.ignored), (Some(9), 3));
        assert_eq!(summary.to_string(), "(9 tests, 3 ignored)");
        assert_eq!(Summary::read("4 passed, 0 failed, 0 skipped\n").to_string(), "(4 tests)");
    }
}
