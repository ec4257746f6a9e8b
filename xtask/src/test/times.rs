//! The times of earlier runs, so that the longest jobs can start first.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::lanes::Outcome;

#[derive(Debug)]
pub(crate) struct Times {
    file: PathBuf,
    seconds: BTreeMap<String, f64>,
}

impl Times {
    /// A missing or broken file counts as empty.
    pub(crate) fn read(file: PathBuf) -> Self {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let known: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
        let seconds = known.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect();
        Self { file, seconds }
    }

    pub(crate) fn of(&self, job: &str) -> Option<f64> {
        self.seconds.get(job).copied()
    }

    /// Records the times of jobs that ran completely and passed.
    pub(crate) fn learn(&mut self, outcomes: &[Outcome]) -> Result<(), String> {
        for outcome in outcomes.iter().filter(|outcome| outcome.passed && outcome.job.is_whole) {
            let tenths = (outcome.took.as_secs_f64() * 10.0).round() / 10.0;
            self.seconds.insert(outcome.job.name.clone(), tenths);
        }
        let text = format!("{:#}\n", json!(self.seconds));
        fs::write(&self.file, text).map_err(|error| format!("cannot write {}: {error}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_file_is_as_good_as_none() {
        let file = std::env::temp_dir().join(format!("xtask-times-{}", std::process::id()));
        fs::write(&file, "{ not json").expect("a file");
        assert_eq!(Times::read(file.clone()).of("a"), None);
        fs::write(&file, r#"{ "a": 1.5, "b": "no number" }"#).expect("a file");
        let times = Times::read(file.clone());
        assert_eq!((times.of("a"), times.of("b")), (Some(1.5), None));
        fs::remove_file(file).expect("it is ours");
    }
}
