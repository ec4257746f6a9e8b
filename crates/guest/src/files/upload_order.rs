//! Orders concurrent uploads to the same path. The upload that started last wins, whatever the others still do. A client may
//! give up on an upload that hangs on a slow disk and send another; the file must then have the bytes of the second one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// The number of the upload that last wrote to a path. Locked while an upload writes.
type Writer = Mutex<u64>;

#[derive(Default)]
struct Uploads {
    last: u64,
    under_way: HashMap<PathBuf, Arc<Writer>>,
}

static UPLOADS: LazyLock<Mutex<Uploads>> = LazyLock::new(Mutex::default);

/// An upload's place in the order of uploads to its path.
pub(super) struct Turn {
    path: PathBuf,
    number: u64,
    writer: Arc<Writer>,
}

/// The right to write to the path. No other upload writes while this is held.
pub(super) struct Writing<'a> {
    writer: MutexGuard<'a, u64>,
    number: u64,
}

impl Turn {
    pub(super) fn enter(path: &Path) -> Self {
        let mut uploads = lock(&UPLOADS);
        uploads.last += 1;
        let writer = Arc::clone(uploads.under_way.entry(path.to_owned()).or_default());
        Self { path: path.to_owned(), number: uploads.last, writer }
    }

    /// Waits until no other upload writes. `None` if a later upload has overwritten this one.
    pub(super) fn write(&self) -> Option<Writing<'_>> {
        let writer = lock(&self.writer);
        (*writer <= self.number).then_some(Writing { writer, number: self.number })
    }
}

impl Writing<'_> {
    /// Marks all earlier uploads as overwritten.
    pub(super) fn overwrite(&mut self) {
        *self.writer = self.number;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut uploads = lock(&UPLOADS);
        // One reference is the map's, the other ours.
        if Arc::strong_count(&self.writer) == 2 {
            uploads.under_way.remove(&self.path);
        }
    }
}

/// A panic cannot leave the number half-written, so a poisoned lock is still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_forgotten_with_their_last_upload() {
        let path = Path::new("/only/in/this/test");
        let (first, second) = (Turn::enter(path), Turn::enter(path));
        drop(second);
        assert!(lock(&UPLOADS).under_way.contains_key(path));
        drop(first);
        assert!(!lock(&UPLOADS).under_way.contains_key(path));
    }

    #[test]
    fn the_first_upload_writes_until_a_later_one_does() {
        let path = Path::new("/only/in/that/test");
        let (first, second) = (Turn::enter(path), Turn::enter(path));
        first.write().expect("no upload has written").overwrite();
        assert!(first.write().is_some());
        second.write().expect("it came last").overwrite();
        assert!(first.write().is_none());
        assert!(second.write().is_some());
    }
}
