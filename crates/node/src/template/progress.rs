//! Parses the progress lines of a recipe's script: `::step 3/9 Installing pandas`.

/// The start of a progress line.
pub(crate) const STEP: &str = "::step ";

/// A progress line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) done: u32,
    pub(crate) total: u32,
    pub(crate) message: String,
}

/// Parses a line. Returns `None` for other output.
pub(crate) fn read_progress(line: &str) -> Option<Step> {
    let (count, message) = line.strip_prefix(STEP)?.split_once(' ')?;
    let (done, total) = count.split_once('/')?;
    let (done, total) = (done.parse().ok()?, total.parse().ok()?);
    (done <= total).then(|| Step { done, total, message: message.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_step_lines_are_progress() {
        let step = Step { done: 3, total: 9, message: "Installing pandas".to_owned() };
        assert_eq!(read_progress("::step 3/9 Installing pandas"), Some(step));
        for line in ["", "step 3/9 x", "::step 9/3 x", "::step a/b x", "::step 1/2", "Collecting numpy"] {
            assert_eq!(read_progress(line), None, "{line:?}");
        }
    }
}
