//! The two directories of a disk: `areas`, which contains the directory of each sandbox, and `trash`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isopod_wire::Bytes;
use rustix::io::Errno;

use super::copy::{Amount, TreeCopy};
use super::error::{Context, DiskError, NoLimit};
use super::folder;
use super::name::AreaName;
use super::trash::{DeletionHook, Trash};
use super::usage::Usage;

/// Creates, limits and removes areas on one kind of file system.
pub(super) trait Areas: Send + Sync {
    fn create(&self, places: &Places, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError>;
    fn set_limit(&self, places: &Places, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError>;
    fn usage(&self, places: &Places, name: &AreaName) -> Result<Usage, DiskError>;
    fn remove(&self, places: &Places, name: &AreaName) -> Result<(), DiskError>;
    /// Creates an area without a limit, and copies what it can of another one that is in use. `None` if that would be of no
    /// use.
    fn begin_copy(&self, places: &Places, from: &AreaName, to: &AreaName) -> Result<Option<TreeCopy>, DiskError> {
        let most = self.usage(places, from)?.used.map_or(u64::MAX, |used| used.0);
        self.create(places, to, None)?;
        let begun = open_copy(places, from, to).and_then(|mut copy| {
            copy.copy_settled(most).doing_area("copy", from.as_str())?;
            Ok(Some(copy))
        });
        if begun.is_err() {
            // The caller gets the reason. What is left is an area that can be removed later.
            self.remove(places, to).ok();
        }
        begun
    }
    /// Completes a copy, or makes all of it. Nothing may change the source meanwhile.
    fn finish_copy(
        &self,
        places: &Places,
        from: &AreaName,
        to: &AreaName,
        begun: Option<TreeCopy>,
    ) -> Result<Amount, DiskError> {
        if begun.is_none() {
            self.create(places, to, None)?;
        }
        let copied = begun.map_or_else(|| open_copy(places, from, to), Ok);
        let copied = copied.and_then(|copy| copy.complete().doing_area("copy", from.as_str()));
        if copied.is_err() {
            self.remove(places, to).ok();
        }
        copied
    }
    /// Why this kind cannot limit areas, or `None` if it can.
    fn no_limit(&self) -> Option<&NoLimit>;
}

fn open_copy(places: &Places, from: &AreaName, to: &AreaName) -> Result<TreeCopy, DiskError> {
    TreeCopy::new(places.open_area(from)?, places.open_area(to)?).doing_area("copy", from.as_str())
}

/// The directories, kept open. Their paths are never looked up again, so changes above them have no effect.
pub(super) struct Places {
    pub(super) root: PathBuf,
    pub(super) areas: Arc<OwnedFd>,
    pub(super) trash: Trash,
}

impl Places {
    /// Creates the two directories below `root` if they do not exist, and starts to empty the trash.
    pub(super) fn open(
        root: &Path,
        hook: impl FnOnce(&Arc<OwnedFd>) -> Arc<dyn DeletionHook>,
    ) -> Result<Self, DiskError> {
        let directory = folder::open_path(root).doing("open", root)?;
        let areas = folder::ensure_below(&directory, "areas").doing("open", root.join("areas"))?;
        let trash = folder::ensure_below(&directory, "trash").doing("open", root.join("trash"))?;
        let areas = Arc::new(areas);
        let trash = Trash::start(trash, hook(&areas)).doing("start to empty", root.join("trash"))?;
        Ok(Self { root: root.to_owned(), areas, trash })
    }

    pub(super) fn areas(&self) -> BorrowedFd<'_> {
        self.areas.as_fd()
    }

    pub(super) fn path_of(&self, name: &AreaName) -> PathBuf {
        self.root.join("areas").join(name.as_str())
    }

    pub(super) fn open_area(&self, name: &AreaName) -> Result<OwnedFd, DiskError> {
        folder::open_below(&*self.areas, name.as_str()).doing_area("open", name.as_str())
    }

    /// Moves the area to the trash, where it is deleted in the background.
    pub(super) fn discard(&self, name: &AreaName) -> Result<(), DiskError> {
        self.trash.take(self.areas(), name.as_str()).doing_area("remove", name.as_str())
    }

    /// The names of all areas, sorted. Entries without a valid name are not ours and are left out.
    pub(super) fn names(&self) -> Result<Vec<AreaName>, DiskError> {
        let areas = self.root.join("areas");
        let mut names = area_names(&*self.areas).doing("read", areas)?;
        names.sort();
        Ok(names)
    }
}

/// The names of the areas below an `areas` directory.
pub(super) fn area_names(areas: impl AsFd) -> Result<Vec<AreaName>, Errno> {
    let entries = folder::entries(areas, usize::MAX)?;
    let parse = |entry: folder::Entry| AreaName::parse(entry.name.to_str().ok()?).ok();
    Ok(entries.into_iter().filter(|entry| entry.may_be_directory).filter_map(parse).collect())
}

/// Whether there are areas directly below `root`. Creates nothing.
pub(super) fn has_areas(root: &Path) -> io::Result<bool> {
    match folder::open_path(&root.join("areas")) {
        Ok(areas) => Ok(!area_names(areas)?.is_empty()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
