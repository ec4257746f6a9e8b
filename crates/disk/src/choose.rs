//! Decides how a state directory stores its areas, and sets it up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use super::error::{Context, DiskError, NoLimit};
use super::folder;
use super::image::{Image, ImageError};
use super::kind::DiskKind;
use super::lock::SetupLock;
use super::options::DiskOptions;
use super::places::{self, Areas, Places};
use super::plain::Plain;
use super::projects::{self, LiftLimit, Projects};
use super::subvolumes::Subvolumes;
use super::trash::{self, NoHook};
use isopod_isolation::sys::btrfs::{self, QuotaState};

/// A disk that is ready for areas.
pub(super) struct Chosen {
    pub(super) places: Places,
    pub(super) areas: Box<dyn Areas>,
    /// Set if the areas are in the image.
    pub(super) image: Option<Image>,
    pub(super) kind: DiskKind,
}

/// Existing areas have priority, because they must stay reachable. Otherwise the best method that the host supports is
/// used.
pub(super) fn choose(state_dir: &Path, options: &DiskOptions, lock: &SetupLock) -> Result<Chosen, DiskError> {
    let root = state_dir.join("disk");
    let image = Image::in_dir(state_dir);
    if image.is_ready() || image.is_mounted()? {
        return in_image(&root, image, options, lock);
    }
    let directory = folder::open_path(&root).doing("open", &root)?;
    if projects::is_available(directory.as_fd()) {
        return with_projects(state_dir, &root);
    }
    if has_btrfs_quota(directory.as_fd(), options).doing("look for quotas of", &root)? {
        return in_subvolumes(&root, None);
    }
    if places::has_areas(&root).doing("look for areas in", &root)? {
        return plain(&root, NoLimit::OlderAreas);
    }
    // The mount would hide anything still in the trash forever.
    trash::empty_without_thread(&directory).doing("empty", root.join("trash"))?;
    in_image(&root, image, options, lock)
}

fn has_btrfs_quota(directory: BorrowedFd<'_>, options: &DiskOptions) -> io::Result<bool> {
    if !btrfs::is_btrfs(directory)? {
        return Ok(false);
    }
    // Without CAP_SYS_ADMIN, the state cannot be read and no limit can be set.
    if btrfs::quota_state(directory).is_ok_and(|state| state != QuotaState::Off) {
        return Ok(true);
    }
    Ok(options.may_enable_quota && btrfs::set_quota_state(directory, QuotaState::Full).is_ok())
}

fn in_image(root: &Path, image: Image, options: &DiskOptions, lock: &SetupLock) -> Result<Chosen, DiskError> {
    match image.ensure_mounted(options, lock) {
        Ok(()) => in_subvolumes(root, Some(image)),
        Err(ImageError::Impossible(reason)) => plain(root, reason),
        Err(ImageError::Failed(error)) => Err(error),
    }
}

fn in_subvolumes(root: &Path, image: Option<Image>) -> Result<Chosen, DiskError> {
    let places = Places::open(root, |_| Arc::new(NoHook))?;
    let areas = Subvolumes::open(places.areas(), image.is_some()).doing("look at the qgroups of", root)?;
    let kind = if image.is_some() { DiskKind::Image } else { DiskKind::Subvolumes };
    Ok(Chosen { places, areas: Box::new(areas), image, kind })
}

fn with_projects(state_dir: &Path, root: &Path) -> Result<Chosen, DiskError> {
    let areas = Projects::open(state_dir, root)?;
    let places = Places::open(root, |areas| Arc::new(LiftLimit { areas: areas.clone() }))?;
    Ok(Chosen { places, areas: Box::new(areas), image: None, kind: DiskKind::Projects })
}

fn plain(root: &Path, reason: NoLimit) -> Result<Chosen, DiskError> {
    let places = Places::open(root, |_| Arc::new(NoHook))?;
    Ok(Chosen { places, areas: Box::new(Plain { reason }), image: None, kind: DiskKind::Plain })
}
