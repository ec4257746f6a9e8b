//! The result of a command.

use isopod_guest_client::guest::Output;

/// Output and exit code of a command, as text.
#[derive(Debug)]
pub struct ShellOutput {
    output: Output,
}

impl ShellOutput {
    pub(crate) fn new(output: Output) -> Self {
        Self { output }
    }

    /// Standard output.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// Standard error.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The exit code, or -1 if a signal ended it.
    pub fn code(&self) -> i32 {
        self.output.ended.exit_code
    }

    /// Returns the standard output of a successful command.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    pub fn ok(&self) -> String {
        assert_eq!(self.code(), 0, "stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        self.stdout()
    }
}
