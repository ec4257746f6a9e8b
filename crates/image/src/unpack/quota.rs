//! How much may be written, shared by all who write: several archives of one image, the files of one step.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Bounds;

/// Bytes that are written between two looks at whether to go on.
pub const CHUNK: u64 = 1 << 20;

/// Why no more may be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// As many bytes as there may be.
    #[error("it holds more than {0} bytes")]
    Bytes(u64),
    /// As many files, directories and links as there may be.
    #[error("it holds more than {0} files")]
    Entries(u64),
    /// Whoever asked for it says so.
    #[error("{0}")]
    Stopped(String),
}

impl From<QuotaError> for io::Error {
    fn from(error: QuotaError) -> Self {
        Self::other(error)
    }
}

/// Asked now and then whether to go on; a text says why not.
type Stop = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// An amount that writers take from until nothing is left.
pub struct Quota {
    bounds: Bounds,
    /// Taken so far. Only ever grow.
    bytes: AtomicU64,
    entries: AtomicU64,
    stop: Option<Stop>,
}

impl Quota {
    /// So much for all together.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, bytes: AtomicU64::new(0), entries: AtomicU64::new(0), stop: None }
    }

    /// The same, and `stop` is asked before every entry and every [`CHUNK`] of bytes.
    #[must_use]
    pub fn stopped_by(self, stop: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { stop: Some(Box::new(stop)), ..self }
    }

    /// Takes one entry.
    ///
    /// # Errors
    /// When there is none left, or when it is time to stop.
    pub fn take_entry(&self) -> Result<(), QuotaError> {
        self.check()?;
        match self.entries.fetch_add(1, Ordering::Relaxed) < self.bounds.entries {
            true => Ok(()),
            false => Err(QuotaError::Entries(self.bounds.entries)),
        }
    }

    /// Takes bytes. Whoever writes in pieces of at most [`CHUNK`] stops in time.
    ///
    /// # Errors
    /// When so many are not left, or when it is time to stop.
    pub fn take_bytes(&self, bytes: u64) -> Result<(), QuotaError> {
        self.check()?;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        match before.checked_add(bytes).is_some_and(|taken| taken <= self.bounds.bytes) {
            true => Ok(()),
            false => Err(QuotaError::Bytes(self.bounds.bytes)),
        }
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// When it is time to stop.
    pub fn check(&self) -> Result<(), QuotaError> {
        match self.stop.as_ref().and_then(|stop| stop()) {
            Some(reason) => Err(QuotaError::Stopped(reason)),
            None => Ok(()),
        }
    }

    /// Copies a stream in pieces, each taken from the quota before it is written.
    ///
    /// # Errors
    /// When the quota ends ([`QuotaError`] inside), or when one of both fails.
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
