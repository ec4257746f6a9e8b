//! Runs a command to its end and collects its output.

use crate::memory::{MemoryBudget, Reservation};

use super::{Event, Guest, GuestError, Output, Process, StartProcess};

impl Guest {
    /// Runs a command and waits for its end. Keeps all of its output in memory.
    ///
    /// A failed command is not an error: see [`Output::ended`].
    ///
    /// # Errors
    /// Like [`Guest::start`] and [`Process::next`].
    pub async fn run(&self, command: impl Into<StartProcess>) -> Result<Output, GuestError> {
        self.start(command).await?.collect().await
    }
}

impl Process {
    /// Waits for its end and keeps all output, whatever memory that takes.
    ///
    /// # Errors
    /// Like [`Process::next`].
    pub async fn collect(self) -> Result<Output, GuestError> {
        self.collect_up_to(usize::MAX).await
    }

    /// Waits for its end and keeps the first `most` bytes of each stream. More output is read and dropped.
    ///
    /// # Errors
    /// Like [`Process::next`].
    pub async fn collect_up_to(self, most: usize) -> Result<Output, GuestError> {
        self.collect_within(most, &mut MemoryBudget::unlimited().reserve()).await
    }

    /// Like [`Self::collect_up_to`], but also drops output that doesn't fit into this reservation.
    ///
    /// # Errors
    /// Like [`Process::next`].
    pub async fn collect_within(mut self, most: usize, memory: &mut Reservation) -> Result<Output, GuestError> {
        let (mut stdout, mut stderr, mut truncated) = (Vec::new(), Vec::new(), false);
        let mut keep = |all: &mut Vec<u8>, more: &[u8]| {
            let room = (most - all.len()).min(more.len());
            let kept = if memory.grow(room) { room } else { 0 };
            all.extend_from_slice(&more[..kept]);
            truncated |= more.len() > kept;
        };
        loop {
            match self.next().await? {
                Some(Event::Stdout(bytes) | Event::Pty(bytes)) => keep(&mut stdout, &bytes),
                Some(Event::Stderr(bytes)) => keep(&mut stderr, &bytes),
                Some(Event::End(ended)) => return Ok(Output { stdout, stderr, truncated, ended }),
                Some(Event::Started(_)) => {}
                None => return Err(GuestError::Protocol("the process had already ended".to_owned())),
            }
        }
    }
}
