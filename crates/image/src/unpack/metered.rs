//! A stream that limits the headers of an archive.
//!
//! The tar library reads long names, extended headers and the maps of sparse files into memory completely, and a few
//! compressed kilobytes may expand to gigabytes of them.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// The maximum size of everything before the content of an entry: its header, a long name, a long target, extended
/// attributes. An attribute has at most 64 KiB, and a file has few of them.
const MAX_HEADERS: u64 = 4 << 20;

/// How much may be read now. Clones share the value.
#[derive(Clone, Default)]
pub(super) struct Allowance(Rc<Cell<u64>>);

impl Allowance {
    /// Call this before headers are read.
    pub(super) fn for_headers(&self) {
        self.0.set(MAX_HEADERS);
    }

    /// Call this before contents are read, whose size the reader counts.
    pub(super) fn for_contents(&self) {
        self.0.set(u64::MAX);
    }
}

pub(super) struct Metered<R> {
    inner: R,
    allowance: Allowance,
}

impl<R> Metered<R> {
    pub(super) fn new(inner: R, allowance: &Allowance) -> Self {
        Self { inner, allowance: allowance.clone() }
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = &self.allowance.0;
        let allowed = usize::try_from(left.get()).unwrap_or(usize::MAX).min(buffer.len());
        if allowed == 0 && !buffer.is_empty() {
            let message = format!("the headers of an entry have more than {MAX_HEADERS} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let read = self.inner.read(&mut buffer[..allowed])?;
        left.set(left.get() - read as u64);
        Ok(read)
    }
}
