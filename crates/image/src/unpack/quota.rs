//! Limits how much may be written. All writers share it: several archives of one image, or the files of one step.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Bounds;

/// The number of bytes that are written between two checks whether to continue.
pub const CHUNK: u64 = 1 << 20;

/// Why nothing more may be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// The limit on bytes is reached.
    #[error("it contains more than {0} bytes")]
    Bytes(u64),
    /// The limit on files, directories and links is reached.
    #[error("it contains more than {0} files")]
    Entries(u64),
    /// The caller asked to stop.
    #[error("{0}")]
    Stopped(String),
}

impl From<QuotaError> for io::Error {
    fn from(error: QuotaError) -> Self {
        Self::other(error)
    }
}

/// Called periodically to find out whether to continue. A returned text says why not.
type Stop = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// An amount that writers consume until nothing is left.
pub struct Quota {
    bounds: Bounds,
    /// The amounts consumed so far. They only grow.
    bytes: AtomicU64,
    entries: AtomicU64,
    stop: Option<Stop>,
}

impl Quota {
    /// A quota with these limits for all writers together.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, bytes: AtomicU64::new(0), entries: AtomicU64::new(0), stop: None }
    }

    /// Also calls `stop` before every entry and every [`CHUNK`] of bytes.
    #[must_use]
    pub fn stopped_by(self, stop: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { stop: Some(Box::new(stop)), ..self }
    }

    /// Consumes one entry.
    ///
    /// # Errors
    /// If none is left, or if the caller asked to stop.
    pub fn take_entry(&self) -> Result<(), QuotaError> {
        self.check()?;
        match self.entries.fetch_add(1, Ordering::Relaxed) < self.bounds.entries {
            true => Ok(()),
            false => Err(QuotaError::Entries(self.bounds.entries)),
        }
    }

    /// Consumes bytes. Writers should write at most [`CHUNK`] bytes at a time, so that they stop early enough.
    ///
    /// # Errors
    /// If not enough are left, or if the caller asked to stop.
    pub fn take_bytes(&self, bytes: u64) -> Result<(), QuotaError> {
        self.check()?;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        match before.checked_add(bytes).is_some_and(|taken| taken <= self.bounds.bytes) {
            true => Ok(()),
            false => Err(QuotaError::Bytes(self.bounds.bytes)),
        }
    }

    /// Checks whether to continue.
    ///
    /// # Errors
    /// If the caller asked to stop.
    pub fn check(&self) -> Result<(), QuotaError> {
        match self.stop.as_ref().and_then(|stop| stop()) {
            Some(reason) => Err(QuotaError::Stopped(reason)),
            None => Ok(()),
        }
    }

    /// Copies a stream in chunks. Each chunk is consumed from the quota before it is written.
    ///
    /// # Errors
    /// If the quota is exhausted (the error contains a [`QuotaError`]), or if reading or writing fails.
    pub fn copy(&self, from: &mut (impl io::Read + ?Sized), to: &mut (impl io::Write + ?Sized)) -> io::Result<u64> {
        let mut buffer = vec![0; 1 << 17];
        let mut copied = 0;
        loop {
            let length = match from.read(&mut buffer) {
                Ok(0) => return Ok(copied),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.take_bytes(length as u64)?;
            to.write_all(&buffer[..length])?;
            copied += length as u64;
        }
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bounds, bytes, entries, .. } = self;
        f.debug_struct("Quota")
            .field("bounds", bounds)
            .field("bytes", bytes)
            .field("entries", entries)
            .finish_non_exhaustive()
    }
}
