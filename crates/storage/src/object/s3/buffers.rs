//! Reusable buffers for the parts of big files.
//!
//! If every part allocated new memory on whichever thread reads it, freed memory would stay in the allocator's arena of
//! each thread. A long file would then need several times the memory of the parts in flight.

use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;

/// Unused buffers.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

/// A buffer in use. It returns by itself on drop.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    home: Weak<Mutex<Vec<Vec<u8>>>>,
}

impl Buffers {
    /// A buffer of this length, with arbitrary content.
    pub(super) fn take(&self, length: usize) -> Buffer {
        let mut bytes = self.0.lock().expect("no panic while held").pop().unwrap_or_default();
        bytes.resize(length, 0);
        Buffer { bytes, home: Arc::downgrade(&self.0) }
    }

    /// Frees the memory, at the end of a file.
    pub(super) fn clear(&self) {
        self.0.lock().expect("no panic while held").clear();
    }
}

impl Buffer {
    pub(super) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(super) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade()
            && let Ok(mut kept) = home.lock()
        {
            kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_and_has_the_length_that_is_asked_for() {
        let buffers = Buffers::default();
        let mut first = buffers.take(1000);
        first.as_mut().fill(7);
        let bytes = first.into_bytes();
        let place = bytes.as_ptr();
        let copy = bytes.clone();
        drop(bytes);
        assert!(buffers.0.lock().unwrap().is_empty(), "somebody still has it");
        assert_eq!(copy, vec![7; 1000]);
        drop(copy);
        let second = buffers.take(10);
        assert_eq!((second.as_ref().len(), second.as_ref().as_ptr()), (10, place));
        drop(second);
        buffers.clear();
        assert!(buffers.0.lock().unwrap().is_empty());
    }
}
