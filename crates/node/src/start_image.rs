//! A start image: the files and processes of a sandbox of a template, saved when its start command was ready and its
//! interpreter waited for code. Sandboxes of the template start from it, which is faster than starting all of that again.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use isopod_checkpoint::{Criu, ForRestore, MEMORY, SavedMemory};
use isopod_wire::Limits;

use crate::record::Record;
use crate::template::Template;

#[derive(Debug)]
pub(crate) struct StartImage {
    pub(crate) record: Record,
    /// The writable layer that a sandbox gets a copy of.
    pub(crate) area: String,
    pub(crate) restored: ForRestore,
    pub(crate) memory: SavedMemory,
    is_bad: AtomicBool,
}

impl StartImage {
    /// # Errors If it is incomplete.
    pub(crate) fn open(criu: Arc<Criu>, record: Record, directory: &Path) -> io::Result<Self> {
        let area = record.area.clone().ok_or(io::ErrorKind::InvalidData)?;
        let memory = SavedMemory::open(criu, &directory.join(MEMORY))?;
        Ok(Self { record, area, restored: memory.for_copy(), memory, is_bad: AtomicBool::new(false) })
    }

    /// Programs have adapted to these limits. The disk's is set later.
    pub(crate) fn has_limits(&self, limits: &Limits) -> bool {
        Limits { disk: self.record.limits.disk, ..*limits } == self.record.limits
    }

    /// Whether it could not be restored. It is not tried again.
    pub(crate) fn is_bad(&self) -> bool {
        self.is_bad.load(Ordering::Acquire)
    }

    /// Returns whether it was not bad before.
    pub(crate) fn make_bad(&self) -> bool {
        !self.is_bad.swap(true, Ordering::AcqRel)
    }
}

/// Whether sandboxes of a template have something to start.
pub(crate) fn has_something_to_start(template: &Template) -> bool {
    let Some(manifest) = template.manifest() else { return false };
    manifest.template.start_cmd.is_some() || template.interpreter().is_some()
}
