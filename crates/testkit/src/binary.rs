//! Runs the `isopod` program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program with a state directory.
#[derive(Clone, Debug)]
pub struct Isopod {
    binary: PathBuf,
    state: PathBuf,
}

/// The result of a run.
#[derive(Debug)]
pub struct Finished {
    output: Output,
}

impl Isopod {
    pub(crate) fn new(binary: &Path, state: &Path) -> Self {
        Self { binary: binary.to_owned(), state: state.to_owned() }
    }

    /// The same program with another state directory.
    #[must_use]
    pub fn with_state(&self, state: &Path) -> Self {
        Self::new(&self.binary, state)
    }

    /// Creates a command without starting it.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("--state-dir").arg(&self.state).args(arguments).stdin(Stdio::null());
        // A test that needs a built template requests it.
        command.env("ISOPOD_PREPARE", "none");
        command
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run(&self, arguments: &[&str]) -> Finished {
        Finished { output: self.command(arguments).output().expect("the program starts") }
    }

    /// Runs it with this input.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Finished {
        let mut command = self.command(arguments);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("the program starts");
        child.stdin.take().expect("standard input is piped").write_all(input).expect("it reads its input");
        Finished { output: child.wait_with_output().expect("the program ends") }
    }
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Self { output }
    }
}

impl Finished {
    /// The exit code, or -1 if a signal ended it.
    pub fn code(&self) -> i32 {
        self.output.status.code().unwrap_or(-1)
    }

    /// Standard output.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// Standard error.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Returns the standard output of a successful run.
    ///
    /// # Panics
    /// If it failed.
    #[track_caller]
    pub fn ok(&self) -> String {
        assert_eq!(self.code(), 0, "stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        self.stdout()
    }
}
