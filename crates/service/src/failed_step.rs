//! Which step of a fragment failed, and what it wrote.

use serde::Serialize;

use crate::backend::Output;

/// A step of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Step {
    Create,
    Install,
    Write,
    Run,
    Start,
}

impl Step {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Install => "install",
            Self::Write => "write",
            Self::Run => "run",
            Self::Start => "start",
        }
    }
}

/// A step that failed in the sandbox because of what the fragment says.
#[derive(Clone, Debug, thiserror::Error, Serialize)]
#[error("the {} step failed: {message}", .step.text())]
pub(crate) struct FailedStep {
    pub(crate) step: Step,
    #[serde(skip)]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    timed_out: bool,
    /// The ends of both streams, because errors come last.
    stdout: String,
    stderr: String,
}

/// How much of each stream an error shows.
const SHOWN_OUTPUT: usize = 16 << 10;

impl FailedStep {
    pub(crate) fn new(step: Step, message: impl Into<String>) -> Self {
        Self {
            step,
            message: message.into(),
            exit_code: None,
            timed_out: false,
            stdout: String::new(),
            stderr: String::new(),
        }
    }

    pub(crate) fn timed_out(self) -> Self {
        Self { timed_out: true, ..self }
    }

    pub(crate) fn with_output(self, output: &Output) -> Self {
        Self {
            exit_code: Some(output.exit_code),
            timed_out: output.timed_out,
            ..self.with_streams(&output.stdout, &output.stderr)
        }
    }

    pub(crate) fn with_exit_code(self, exit_code: i32) -> Self {
        Self { exit_code: Some(exit_code), ..self }
    }

    pub(crate) fn with_streams(self, stdout: &[u8], stderr: &[u8]) -> Self {
        Self { stdout: end_of(stdout), stderr: end_of(stderr), ..self }
    }
}

fn end_of(stream: &[u8]) -> String {
    String::from_utf8_lossy(&stream[stream.len().saturating_sub(SHOWN_OUTPUT)..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_long_output_is_kept() {
        let long = [vec![b'x'; SHOWN_OUTPUT], b"the error".to_vec()].concat();
        let failed = FailedStep::new(Step::Install, "no").with_streams(&long, b"");
        assert!(failed.stdout.len() == SHOWN_OUTPUT && failed.stdout.ends_with("the error"));
    }
}
