//! Where the writable layers of sandboxes live, each with a limit where the host can limit.
//!
//! Every sandbox gets an *area*: a directory of its own below `<state>/disk/areas`. How it is limited depends on the
//! file system of the state directory:
//!
//! 1. ext4 or xfs with `prjquota`: a directory with a project id;
//! 2. btrfs with quotas on: a subvolume with a qgroup;
//! 3. anything else: a subvolume with a qgroup in a btrfs image that is mounted at `<state>/disk`;
//! 4. where that cannot be: a plain directory without limit, and [`Disk::no_limit`] says why.
//!
//! A write past the limit fails with EDQUOT or ENOSPC (see [`is_disk_full`]) and leaves the other areas alone. Areas
//! and the mount outlive the process; the next one that opens the same state directory finds them. A process killed
//! between two steps leaves at most an area that [`Disk::area_names`] tells and [`Disk::remove_area`] removes.

use std::fmt;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use isopod_wire::Bytes;

mod choose;
mod error;
mod folder;
mod image;
mod lock;
mod mkfs;
mod mounts;
mod name;
mod places;
mod plain;
mod projects;
mod subvolumes;
mod trash;
mod tree;
mod usage;

pub use error::{DiskError, NoLimit, is_disk_full};
pub use name::{AreaName, NameError};
pub use usage::Usage;

use choose::{Chosen, choose};
use error::Context;
use image::{Image, Unmounted};
use lock::SetupLock;
use places::{Areas, Places};

/// How a disk is set up.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The most that an image may grow to. Without it, 80 % of what is free when it is made. The image is sparse.
    pub image_size: Option<Bytes>,
    /// Whether quotas may be turned on for the whole btrfs file system that the state directory is on. It slows down a
    /// file system with many snapshots, so the administrator decides; without it the image is used there too.
    pub may_enable_quota: bool,
    /// The program that formats the image, by name or path.
    pub mkfs_program: PathBuf,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { image_size: None, may_enable_quota: false, mkfs_program: PathBuf::from("mkfs.btrfs") }
    }
}

/// The place of all areas. Its methods may be called from many threads; they block, some for a disk access.
pub struct Disk {
    state_dir: PathBuf,
    places: Places,
    areas: Box<dyn Areas>,
    image: Option<Image>,
}

/// The directory of one sandbox: empty, for root only (0700), limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    path: PathBuf,
}

impl Area {
    /// The directory, as an absolute path without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Disk {
    /// Finds or makes the disk of a state directory, which is made too if it is missing.
    pub fn open(state_dir: &Path, options: &DiskOptions) -> Result<Self, DiskError> {
        ensure_private(state_dir)?;
        let state_dir = state_dir.canonicalize().doing("find", state_dir)?;
        let lock = SetupLock::acquire(&state_dir)?;
        ensure_private(&state_dir.join("disk"))?;
        let Chosen { places, areas, image } = choose(&state_dir, options, &lock)?;
        Ok(Self { state_dir, places, areas, image })
    }

    /// Whether areas can have a limit.
    pub fn can_limit(&self) -> bool {
        self.no_limit().is_none()
    }

    /// Why areas cannot have a limit, and what would help.
    pub fn no_limit(&self) -> Option<&NoLimit> {
        self.areas.no_limit()
    }

    /// Makes an area. A limit is refused where there can be none: whoever can do without asks [`Disk::can_limit`].
    pub fn create_area(&self, name: &str, limit: Option<Bytes>) -> Result<Area, DiskError> {
        let name = AreaName::parse(name)?;
        self.areas.create(&self.places, &name, limit)?;
        Ok(Area { path: self.places.path_of(&name) })
    }

    /// The area of this name, after a restart for example.
    pub fn area(&self, name: &str) -> Result<Area, DiskError> {
        let name = AreaName::parse(name)?;
        self.places.open_area(&name)?;
        Ok(Area { path: self.places.path_of(&name) })
    }

    /// Changes the limit; it may be below what is used, then nothing more can be written. `None` lifts it.
    pub fn set_limit(&self, name: &str, limit: Option<Bytes>) -> Result<(), DiskError> {
        self.areas.set_limit(&self.places, &AreaName::parse(name)?, limit)
    }

    /// What the area has used and may use.
    pub fn usage(&self, name: &str) -> Result<Usage, DiskError> {
        self.areas.usage(&self.places, &AreaName::parse(name)?)
    }

    /// Waits until everything in the area is on the disk. It takes the whole file system of all areas along.
    pub fn sync_area(&self, name: &str) -> Result<(), DiskError> {
        let area = self.places.open_area(&AreaName::parse(name)?)?;
        rustix::fs::syncfs(&area).doing_area("sync", name)
    }

    /// Removes the area with everything in it. Its name is free at once, its space a little later.
    pub fn remove_area(&self, name: &str) -> Result<(), DiskError> {
        self.areas.remove(&self.places, &AreaName::parse(name)?)
    }

    /// The names of all areas, sorted.
    pub fn area_names(&self) -> Result<Vec<AreaName>, DiskError> {
        self.places.names()
    }

    /// What can still be written, by all areas together.
    pub fn free_space(&self) -> Result<Bytes, DiskError> {
        let free = |path: &Path| image::free_bytes(path).doing("look for free space in", path);
        // The image is sparse: the file system that it lies on may have less room than it promises.
        Ok(Bytes(free(&self.places.root)?.min(free(&self.state_dir)?)))
    }

    /// Unmounts the image and frees its loop device if there is no area and nobody else uses it. False when it stays.
    /// The image file is kept, so the next start is quick. [`DiskError::StillInUse`] when it is unmounted here, but
    /// another mount namespace has a copy of the mount.
    pub fn close_if_unused(self) -> Result<bool, DiskError> {
        let _lock = SetupLock::acquire(&self.state_dir)?;
        if !self.area_names()?.is_empty() {
            return Ok(false);
        }
        let root = self.places.root.clone();
        let Self { places, image, .. } = self;
        // An open directory would keep the file system mounted.
        drop(places);
        let Some(image) = image else { return Ok(true) };
        match image.unmount()? {
            Unmounted::Free => Ok(true),
            Unmounted::Busy => Ok(false),
            Unmounted::HeldElsewhere => Err(DiskError::StillInUse(root)),
        }
    }

    /// Removes the disk with all areas and leaves nothing of it in the state directory.
    ///
    /// Refused with [`DiskError::StillInUse`] while something in it is open. The same error comes after the removal
    /// when another mount namespace has a copy of the mount: the space is given back when that namespace ends.
    pub fn destroy(self) -> Result<(), DiskError> {
        let lock = SetupLock::acquire(&self.state_dir)?;
        match self.image.clone() {
            Some(image) => self.destroy_image(&image)?,
            None => self.destroy_directories()?,
        }
        lock.remove()
    }

    fn destroy_image(self, image: &Image) -> Result<(), DiskError> {
        let root = self.places.root.clone();
        drop(self.places);
        let unmounted = image.unmount()?;
        if unmounted == Unmounted::Busy {
            return Err(DiskError::StillInUse(root));
        }
        image.remove_files()?;
        remove_directories(&root)?;
        match unmounted {
            Unmounted::HeldElsewhere => Err(DiskError::StillInUse(root)),
            _ => Ok(()),
        }
    }

    fn destroy_directories(self) -> Result<(), DiskError> {
        let root = self.places.root.clone();
        for name in self.area_names()? {
            self.areas.remove(&self.places, &name)?;
        }
        let left = self.places.trash.empty().doing("empty", root.join("trash"))?;
        if left > 0 {
            return Err(DiskError::TrashLeft(left));
        }
        drop(self.places);
        remove_directories(&root)?;
        let ids = self.state_dir.join(projects::IDS_FILE);
        if_there(std::fs::remove_file(&ids)).doing("remove", ids)
    }
}

/// Removes the empty directories of a disk. What someone else put there stays, and is told as an error.
fn remove_directories(root: &Path) -> Result<(), DiskError> {
    for path in [root.join("areas"), root.join("trash"), root.to_owned()] {
        if_there(std::fs::remove_dir(&path)).doing("remove", path)?;
    }
    Ok(())
}

fn if_there(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.image.is_some() { "image" } else { "directory" };
        f.debug_struct("Disk").field("root", &self.places.root).field("kept_in", &how).finish_non_exhaustive()
    }
}

/// Makes the directory, for root only, if it is missing.
fn ensure_private(path: &Path) -> Result<(), DiskError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).doing("make", path)
}
