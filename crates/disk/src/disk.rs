//! The disk of a state directory: its areas, and the image that contains them, if there is one.

use std::fmt;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use isopod_wire::Bytes;

use crate::blocks;
use crate::choose::{Chosen, choose};
use crate::copy::{Amount, TreeCopy};
use crate::error::{Context, DiskError, NoLimit};
use crate::image::{self, Image, Unmounted};
use crate::kind::DiskKind;
use crate::lock::SetupLock;
use crate::name::AreaName;
use crate::options::DiskOptions;
use crate::places::{Areas, Places};
use crate::projects;
use crate::usage::Usage;
use crate::watch::Watch;

/// Contains all areas. Its methods may be called from many threads. They block, some of them for a disk access.
pub struct Disk {
    state_dir: PathBuf,
    places: Places,
    areas: Box<dyn Areas>,
    image: Option<Watched>,
    kind: DiskKind,
}

/// The image, and the thread that keeps it large enough.
struct Watched {
    image: Image,
    max_size: u64,
    watch: Watch,
}

/// The directory of one sandbox. It starts empty, only root can access it (0700), and it may have a limit.
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

/// The copy of an area that [`Disk::begin_copy`] has begun.
#[derive(Debug)]
pub struct Copying {
    from: AreaName,
    to: AreaName,
    /// `None` if everything is copied at the end.
    files: Option<TreeCopy>,
}

impl Disk {
    /// Opens the disk of a state directory. Creates the disk and the directory if they do not exist.
    pub fn open(state_dir: &Path, options: &DiskOptions) -> Result<Self, DiskError> {
        ensure_private(state_dir)?;
        let state_dir = state_dir.canonicalize().doing("find", state_dir)?;
        let lock = SetupLock::acquire(&state_dir)?;
        ensure_private(&state_dir.join("disk"))?;
        let Chosen { places, areas, image, kind } = choose(&state_dir, options, &lock)?;
        drop(lock);
        let image = image.map(|image| watched(&state_dir, image, options.max_size())).transpose()?;
        Ok(Self { state_dir, places, areas, image, kind })
    }

    /// How areas are kept.
    pub fn kind(&self) -> DiskKind {
        self.kind
    }

    /// Whether areas can have limits.
    pub fn can_limit(&self) -> bool {
        self.no_limit().is_none()
    }

    /// Why areas cannot have limits, and what the operator can do about it.
    pub fn no_limit(&self) -> Option<&NoLimit> {
        self.areas.no_limit()
    }

    /// Creates an area. Fails if a limit is requested but not possible. Callers that can do without one ask
    /// [`Disk::can_limit`].
    pub fn create_area(&self, name: &str, limit: Option<Bytes>) -> Result<Area, DiskError> {
        let name = AreaName::parse(name)?;
        self.areas.create(&self.places, &name, limit)?;
        Ok(Area { path: self.places.path_of(&name) })
    }

    /// Creates an area that has the present content of another one, which is not in use, and no limit. On btrfs this takes a
    /// moment, and the two share what neither of them changes. Elsewhere the files are copied.
    pub fn copy_area(&self, from: &str, to: &str) -> Result<Area, DiskError> {
        let (from, to) = (AreaName::parse(from)?, AreaName::parse(to)?);
        self.areas.finish_copy(&self.places, &from, &to, None)?;
        Ok(Area { path: self.places.path_of(&to) })
    }

    /// Begins to copy an area that programs may be using: copies what none of them is changing, where that takes time. It may
    /// take as long as a minute. If the copy is not finished, [`Disk::remove_area`] removes what there is of it.
    pub fn begin_copy(&self, from: &str, to: &str) -> Result<Copying, DiskError> {
        let (from, to) = (AreaName::parse(from)?, AreaName::parse(to)?);
        let files = self.areas.begin_copy(&self.places, &from, &to)?;
        Ok(Copying { from, to, files })
    }

    /// As [`Disk::begin_copy`], but leaves everything for the end.
    pub fn copy_at_the_end(&self, from: &str, to: &str) -> Result<Copying, DiskError> {
        Ok(Copying { from: AreaName::parse(from)?, to: AreaName::parse(to)?, files: None })
    }

    /// Copies the rest, while programs must not change anything. Returns how much that was.
    pub fn finish_copy(&self, copying: Copying) -> Result<Amount, DiskError> {
        let Copying { from, to, files } = copying;
        self.areas.finish_copy(&self.places, &from, &to, files)
    }

    /// The existing area of this name, for example after a restart.
    pub fn area(&self, name: &str) -> Result<Area, DiskError> {
        let name = AreaName::parse(name)?;
        self.places.open_area(&name)?;
        Ok(Area { path: self.places.path_of(&name) })
    }

    /// Changes the limit. If it is below the current usage, nothing more can be written. `None` removes the limit.
    pub fn set_limit(&self, name: &str, limit: Option<Bytes>) -> Result<(), DiskError> {
        self.areas.set_limit(&self.places, &AreaName::parse(name)?, limit)
    }

    /// The current usage and the limit of the area.
    pub fn usage(&self, name: &str) -> Result<Usage, DiskError> {
        self.areas.usage(&self.places, &AreaName::parse(name)?)
    }

    /// What the area takes, by its project's count or else by its files' blocks, which reads all of its directories. What it
    /// shares with other areas counts too: how much that is changes with each write to them, and it is the area's alone once
    /// they are gone. Simple quotas of btrfs count it for the area that was there first.
    pub fn size(&self, name: &str) -> Result<Bytes, DiskError> {
        match self.usage(name)?.used {
            Some(used) if self.kind == DiskKind::Projects => Ok(used),
            _ => blocks::used_by(self.area(name)?.path()).doing_area("measure", name),
        }
    }

    /// Waits until everything in the area is on the disk. This syncs the file system of all areas.
    pub fn sync_area(&self, name: &str) -> Result<(), DiskError> {
        let area = self.places.open_area(&AreaName::parse(name)?)?;
        rustix::fs::syncfs(&area).doing_area("sync", name)
    }

    /// Removes the area and its content. Its name is free at once. Its space is freed a little later.
    pub fn remove_area(&self, name: &str) -> Result<(), DiskError> {
        self.areas.remove(&self.places, &AreaName::parse(name)?)
    }

    /// The names of all areas, sorted.
    pub fn area_names(&self) -> Result<Vec<AreaName>, DiskError> {
        self.places.names()
    }

    /// How much all areas together can still write.
    pub fn free_space(&self) -> Result<Bytes, DiskError> {
        let Some(watched) = &self.image else { return self.host_free_space() };
        let space = watched.image.space(watched.max_size).doing("look for free space in", &self.places.root)?;
        Ok(Bytes(space.free + space.growable()))
    }

    /// The free space on the disk of the state directory itself, where records are written.
    pub fn host_free_space(&self) -> Result<Bytes, DiskError> {
        image::free_bytes(&self.state_dir).map(Bytes).doing("look for free space in", &self.state_dir)
    }

    /// Removes a disk that can no longer be opened or closed, for example because the device below it fails. Sandboxes
    /// that still use it lose their files.
    pub fn abandon(state_dir: &Path) -> Result<(), DiskError> {
        let state_dir = state_dir.canonicalize().doing("find", state_dir)?;
        let _lock = SetupLock::acquire(&state_dir)?;
        Image::in_dir(&state_dir).abandon()
    }

    /// Unmounts the image and frees its loop device if there is no area and no other user. Returns false if it stays
    /// mounted. The image file is kept, so the next start is quick. Returns [`DiskError::StillInUse`] if it is
    /// unmounted here but another mount namespace has a copy of the mount.
    pub fn close_if_unused(self) -> Result<bool, DiskError> {
        let _lock = SetupLock::acquire(&self.state_dir)?;
        if !self.area_names()?.is_empty() {
            return Ok(false);
        }
        let root = self.places.root.clone();
        let Self { places, image, .. } = self;
        // An open directory would keep the file system mounted.
        drop(places);
        let Some(Watched { image, watch, .. }) = image else { return Ok(true) };
        drop(watch);
        match image.unmount()? {
            Unmounted::Free => image.remove_if_large().map(|()| true),
            Unmounted::Busy => Ok(false),
            Unmounted::HeldElsewhere => Err(DiskError::StillInUse(root)),
        }
    }

    /// Removes the disk with all areas and leaves nothing of it in the state directory.
    ///
    /// Fails with [`DiskError::StillInUse`] while a file in it is open. It returns the same error after a successful
    /// removal if another mount namespace has a copy of the mount. The space is then freed when that namespace ends.
    pub fn destroy(self) -> Result<(), DiskError> {
        let lock = SetupLock::acquire(&self.state_dir)?;
        let Self { state_dir, places, areas, image, .. } = self;
        match image {
            Some(watched) => destroy_image(places, watched)?,
            None => destroy_directories(&state_dir, places, &*areas)?,
        }
        lock.remove()
    }
}

fn watched(state_dir: &Path, image: Image, max_size: u64) -> Result<Watched, DiskError> {
    let watch = Watch::start(state_dir, &image, max_size).doing("start to watch", state_dir.join("disk"))?;
    Ok(Watched { image, max_size, watch })
}

fn destroy_image(places: Places, Watched { image, watch, .. }: Watched) -> Result<(), DiskError> {
    let root = places.root.clone();
    drop((places, watch));
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

fn destroy_directories(state_dir: &Path, places: Places, areas: &dyn Areas) -> Result<(), DiskError> {
    let root = places.root.clone();
    for name in places.names()? {
        areas.remove(&places, &name)?;
    }
    let left = places.trash.empty().doing("empty", root.join("trash"))?;
    if left > 0 {
        return Err(DiskError::TrashLeft(left));
    }
    drop(places);
    remove_directories(&root)?;
    let ids = state_dir.join(projects::IDS_FILE);
    if_there(std::fs::remove_file(&ids)).doing("remove", ids)
}

/// Removes the empty directories of a disk. It keeps files that someone else put there, and returns an error.
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

/// Creates the directory, accessible only to root, if it does not exist.
fn ensure_private(path: &Path) -> Result<(), DiskError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).doing("make", path)
}
