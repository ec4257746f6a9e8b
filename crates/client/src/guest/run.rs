//! Running a command to its end and collecting what it writes.

use super::{Event, Guest, GuestError, Output, Process, StartProcess};

impl Guest {
    /// Runs a command and waits for its end. All of its output is kept in memory.
    ///
    /// A command that fails is not an error: see [`Output::ended`].
    ///
    /// # Errors
    /// Like [`Guest::start`] and [`Process::next`].
    pub async fn run(&self, command: impl Into<StartProcess>) -> Result<Output, GuestError> {
        self.start(command).await?.collect().await
    }
}

impl Process {
    /// Waits for its end and keeps all that it writes until then.
    ///
    /// # Errors
    /// Like [`Process::next`].
    pub async fn collect(mut self) -> Result<Output, GuestError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.next().await? {
                Some(Event::Stdout(bytes) | Event::Pty(bytes)) => stdout.extend_from_slice(&bytes),
                Some(Event::Stderr(bytes)) => stderr.extend_from_slice(&bytes),
                Some(Event::End(ended)) => return Ok(Output { stdout, stderr, ended }),
                Some(Event::Started(_)) => {}
                None => return Err(GuestError::Protocol("the process had already ended".to_owned())),
            }
        }
    }
}
