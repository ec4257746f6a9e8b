//! Limits how much of a build's output is recorded: its programs may print endlessly, and every line is a row.

use isopod_store::{BuildLine, Level};

/// The maximum output of one build. After that, only errors are recorded, because the server itself writes those.
const MAX_BYTES: usize = 4 << 20;
/// The size that a line counts in addition to its text.
const LINE_BYTES: usize = 64;

/// What is left for a build.
#[derive(Debug)]
pub(super) struct LogAllowance {
    /// `None` once the rest was cut off.
    left: Option<usize>,
}

impl Default for LogAllowance {
    fn default() -> Self {
        Self { left: Some(MAX_BYTES) }
    }
}

impl LogAllowance {
    /// Returns the line to record: the line itself, a notice that the rest is cut off, or nothing.
    pub(super) fn take(&mut self, line: BuildLine) -> Option<BuildLine> {
        if line.level == Level::Error {
            return Some(line);
        }
        let left = self.left?;
        self.left = left.checked_sub(line.message.len() + LINE_BYTES);
        if self.left.is_some() {
            return Some(line);
        }
        let message = format!("the build printed more than {} MiB; the rest is not recorded", MAX_BYTES >> 20);
        Some(BuildLine { level: Level::Warn, message, ..line })
    }
}

#[cfg(test)]
mod tests {
    use isopod_store::clock::Timestamp;

    use super::*;

    fn line(level: Level, length: usize) -> BuildLine {
        BuildLine { at: Timestamp::now(), level, step: None, message: "x".repeat(length) }
    }

    #[test]
    fn a_build_that_says_too_much_is_cut_once_and_its_errors_are_not() {
        for length in [0, 100, 16 << 10] {
            let mut allowance = LogAllowance::default();
            let lines: Vec<_> = (0..100_000).filter_map(|_| allowance.take(line(Level::Info, length))).collect();
            let bytes: usize = lines.iter().map(|line| line.message.len()).sum();
            assert!(bytes <= MAX_BYTES + 100 && lines.len() <= MAX_BYTES / LINE_BYTES + 1, "{length}: {bytes}");
            let told: Vec<_> = lines.iter().filter(|line| line.level == Level::Warn).collect();
            assert_eq!(told.len(), 1, "{length}");
            assert!(lines.last().unwrap().message.contains("not recorded"), "{length}");
            assert!(allowance.take(line(Level::Warn, 1)).is_none());
            assert_eq!(allowance.take(line(Level::Error, 5)).unwrap().message, "xxxxx");
        }
    }
}
