//! Areas as btrfs subvolumes, limited by their qgroups.
//!
//! The number of files is not limited, but the metadata of a file counts too, so a flood of empty files hits the same
//! limit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use isopod_wire::Bytes;
use rustix::fs::Mode;

use super::copy::{Amount, TreeCopy};
use super::error::{Context, DiskError, NoLimit};
use super::name::AreaName;
use super::places::{Areas, Places};
use super::usage::Usage;
use isopod_isolation::sys::btrfs;

/// The number of removals after which the qgroups of removed subvolumes are swept.
const SWEEP_AFTER: usize = 64;

pub(super) struct Subvolumes {
    /// `/sys/fs/btrfs/<uuid>/qgroups`, which has newer figures than the quota tree.
    live_figures: Option<PathBuf>,
    /// The qgroups of removed subvolumes. Kernels before about 6.12 keep them forever.
    removed: Mutex<Vec<u64>>,
}

impl Subvolumes {
    /// For areas on the file system of `root`. With `ours_alone`, also notes the qgroups that earlier processes left.
    /// They are deleted later, when a removal sweeps, because right now one of them may belong to a subvolume that
    /// another process is creating.
    pub(super) fn open(root: BorrowedFd<'_>, ours_alone: bool) -> io::Result<Self> {
        let uuid = btrfs::filesystem_uuid(root)?;
        let live_figures = Some(Path::new("/sys/fs/btrfs").join(uuid).join("qgroups")).filter(|path| path.is_dir());
        let left = if ours_alone { orphans(root)? } else { Vec::new() };
        Ok(Self { live_figures, removed: Mutex::new(left) })
    }

    fn note_removed(&self, root: BorrowedFd<'_>, id: u64) {
        let many = {
            let mut removed = self.removed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            removed.push(id);
            removed.len().is_multiple_of(SWEEP_AFTER)
        };
        if many {
            self.sweep(root);
        }
    }

    /// Deletes the qgroups of subvolumes that the kernel has freed. The others wait for the next sweep.
    fn sweep(&self, root: BorrowedFd<'_>) {
        let candidates = std::mem::take(&mut *self.removed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let kept = candidates.into_iter().filter(|id| !forget_qgroup(root, *id)).collect::<Vec<_>>();
        self.removed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(kept);
    }

    fn figures(&self, area: BorrowedFd<'_>) -> io::Result<Usage> {
        let id = btrfs::subvolume_id(area)?;
        if let Some(usage) = self.live_figures.as_ref().and_then(|qgroups| live_usage(&qgroups.join(format!("0_{id}"))))
        {
            return Ok(usage);
        }
        let figures = btrfs::qgroup_figures(area, id)?;
        Ok(Usage {
            used: figures.map(|figures| Bytes(figures.referenced)),
            limit: figures.and_then(|figures| figures.max_referenced).map(Bytes),
        })
    }
}

impl Areas for Subvolumes {
    fn create(&self, places: &Places, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError> {
        btrfs::create_subvolume(places.areas(), name.as_str()).doing_area("make", name.as_str())?;
        let prepared = places.open_area(name).and_then(|area| prepare(area.as_fd(), name, limit));
        if prepared.is_err() {
            // The caller gets the reason. If the subvolume cannot be removed, it stays as an area that can be removed
            // later.
            btrfs::destroy_subvolume(places.areas(), name.as_str()).ok();
        }
        prepared
    }

    fn set_limit(&self, places: &Places, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError> {
        let area = open_subvolume(places, name)?;
        btrfs::limit_subvolume(area.as_fd(), limit.map(|limit| limit.0)).doing_area("limit", name.as_str())
    }

    fn usage(&self, places: &Places, name: &AreaName) -> Result<Usage, DiskError> {
        let area = places.open_area(name)?;
        match btrfs::is_subvolume(area.as_fd()).doing_area("look at", name.as_str())? {
            true => self.figures(area.as_fd()).doing_area("read the usage of", name.as_str()),
            false => Ok(Usage { used: None, limit: None }),
        }
    }

    fn remove(&self, places: &Places, name: &AreaName) -> Result<(), DiskError> {
        let area = places.open_area(name)?;
        let id = btrfs::subvolume_id(area.as_fd()).doing_area("look at", name.as_str())?;
        if !btrfs::is_subvolume(area.as_fd()).doing_area("look at", name.as_str())? {
            return places.discard(name);
        }
        match btrfs::destroy_subvolume(places.areas(), name.as_str()) {
            Ok(()) => self.note_removed(places.areas(), id),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                // There are subvolumes inside. Deleting them needs a little space, which a full area does not have.
                btrfs::limit_subvolume(area.as_fd(), None).doing_area("lift the limit of", name.as_str())?;
                places.discard(name)?;
            }
            Err(error) => return Err(error).doing_area("remove", name.as_str()),
        }
        Ok(())
    }

    fn begin_copy(&self, _: &Places, _: &AreaName, _: &AreaName) -> Result<Option<TreeCopy>, DiskError> {
        Ok(None)
    }

    fn finish_copy(
        &self,
        places: &Places,
        from: &AreaName,
        to: &AreaName,
        _: Option<TreeCopy>,
    ) -> Result<Amount, DiskError> {
        let source = open_subvolume(places, from)?;
        btrfs::snapshot_subvolume(source.as_fd(), places.areas(), to.as_str()).doing_area("copy", from.as_str())?;
        Ok(Amount::default())
    }

    fn no_limit(&self) -> Option<&NoLimit> {
        None
    }
}

fn prepare(area: BorrowedFd<'_>, name: &AreaName, limit: Option<Bytes>) -> Result<(), DiskError> {
    rustix::fs::fchmod(area, Mode::RWXU).doing_area("set the mode of", name.as_str())?;
    match limit {
        Some(limit) => btrfs::limit_subvolume(area, Some(limit.0)).doing_area("limit", name.as_str()),
        None => Ok(()),
    }
}

/// Opens an area and makes sure that it is a subvolume. The limit of a plain directory would apply to the subvolume
/// around it.
fn open_subvolume(places: &Places, name: &AreaName) -> Result<std::os::fd::OwnedFd, DiskError> {
    let area = places.open_area(name)?;
    match btrfs::is_subvolume(area.as_fd()).doing_area("look at", name.as_str())? {
        true => Ok(area),
        false => Err(DiskError::CannotLimit { area: name.to_string(), reason: NoLimit::OlderArea }),
    }
}

/// Qgroups without a subvolume.
fn orphans(root: BorrowedFd<'_>) -> io::Result<Vec<u64>> {
    let mut orphans = Vec::new();
    let mut first = 0;
    loop {
        let ids = btrfs::subvolume_qgroups(root, first)?;
        let Some(last) = ids.last() else { return Ok(orphans) };
        first = last + 1;
        for id in ids {
            if id >= 256 && !btrfs::subvolume_exists(root, id)? {
                orphans.push(id);
            }
        }
    }
}

/// Returns whether the qgroup is gone.
fn forget_qgroup(root: BorrowedFd<'_>, id: u64) -> bool {
    if btrfs::subvolume_exists(root, id).unwrap_or(true) {
        return false;
    }
    match btrfs::destroy_qgroup(root, id) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Reads the figures in memory. Space that is reserved for pages that are not yet written counts as used.
fn live_usage(qgroup: &Path) -> Option<Usage> {
    let number = |name: &str| std::fs::read_to_string(qgroup.join(name)).ok()?.trim().parse::<u64>().ok();
    let flags = std::fs::read_to_string(qgroup.join("limit_flags")).ok()?;
    let flags = u64::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()?;
    let limit = if flags & 1 != 0 { Some(Bytes(number("max_referenced")?)) } else { None };
    let used = number("referenced")?.saturating_add(number("rsv_data").unwrap_or(0));
    Some(Usage { used: Some(Bytes(used)), limit })
}
