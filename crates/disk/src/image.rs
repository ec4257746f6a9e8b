//! A btrfs file system in a file, for hosts whose own file system cannot enforce limits.
//!
//! While the image is mounted, every block of the file is allocated. So everything that btrfs has accepted can be
//! written, however full the host's disk becomes. For this reason the image must not discard blocks, and it grows and
//! shrinks in steps (see [`super::size`]).
//!
//! - `disk.btrfs.new`: being formatted; contains nothing of value and is replaced by the next attempt
//! - `disk.btrfs`: formatted
//! - `disk.btrfs.ready`: the image was mounted with quotas once; from then on it may contain data and is never replaced
//! - `disk/`: the mount point
//!
//! The mount does not depend on any process. It stays when the process dies, and the next process finds and uses it.
//! The kernel frees the loop device with the last mount (autoclear).

use std::cmp::Ordering;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::error::{Context, DiskError, NoLimit};
use super::lock::SetupLock;
use super::options::DiskOptions;
use super::size::{self, HostSpace, ImageSpace, MIN_SIZE};
use super::{folder, free_space, mkfs, mounts};
use isopod_isolation::sys::btrfs::{self, QuotaState};
use isopod_isolation::sys::loop_device::{BackingFile, LoopDevice};

const FILE_NAME: &str = "disk.btrfs";

/// An unused image is kept for a quick start if it takes at most this fraction of the free space.
const IDLE_SHARE: u64 = 8;
/// A discard would punch holes into the file. With a chunk of metadata for every eight chunks of data, data cannot take
/// all the space before metadata gets some.
const MOUNT_OPTIONS: &std::ffi::CStr = c"nodiscard,metadata_ratio=8";
const FREEING_TIMEOUT: Duration = Duration::from_secs(2);
/// A child that this process has just forked holds copies of our descriptors until it calls exec.
const BUSY_TIMEOUT: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(2);

/// The paths of the image and its mount.
#[derive(Clone, Debug)]
pub(super) struct Image {
    file: PathBuf,
    new: PathBuf,
    ready: PathBuf,
    mount_point: PathBuf,
}

/// Why no image could be mounted.
pub(super) enum ImageError {
    /// This host cannot have an image. Areas without limits can be used instead.
    Impossible(NoLimit),
    /// There is an image, and it must not be ignored.
    Failed(DiskError),
}

/// The result of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmounted {
    /// The loop device is free.
    Free,
    /// Still mounted: a process has a file open, or its working directory is there.
    Busy,
    /// Unmounted here, but a mount namespace that was created in the meantime has a copy. The device is freed with that
    /// namespace.
    HeldElsewhere,
}

impl From<DiskError> for ImageError {
    fn from(error: DiskError) -> Self {
        Self::Failed(error)
    }
}

impl Image {
    /// Builds the paths and accesses nothing. `state_dir` must be absolute and without symbolic links.
    pub(super) fn in_dir(state_dir: &Path) -> Self {
        let name = |name: &str| state_dir.join(name);
        Self {
            file: name(FILE_NAME),
            new: name("disk.btrfs.new"),
            ready: name("disk.btrfs.ready"),
            mount_point: name("disk"),
        }
    }

    /// Whether the image may contain data.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.exists()
    }

    /// Mounts the image, and creates it first if there is none. After a restart it may already be mounted.
    pub(super) fn ensure_mounted(&self, options: &DiskOptions, lock: &SetupLock) -> Result<(), ImageError> {
        if self.is_mounted()? {
            self.finish()?;
            self.ensure_allocated(options);
            return Ok(());
        }
        if self.is_ready() {
            let mounted = self.mount().and_then(|()| ensure_quota(&self.mount_point));
            let image = self.file.clone();
            mounted.map_err(|source| DiskError::ImageUnusable { image, source })?;
            self.ensure_allocated(options);
            return Ok(());
        }
        self.make(options, lock)?;
        if let Err(error) = self.mount() {
            let reason = refusal(&error);
            self.remove_files()?;
            return Err(ImageError::Impossible(reason));
        }
        self.finish()
    }

    /// Turns on quotas, and marks the image as one that may contain data from now on.
    fn finish(&self) -> Result<(), ImageError> {
        if let Err(error) = ensure_quota(&self.mount_point) {
            if self.is_ready() {
                return Err(DiskError::ImageUnusable { image: self.file.clone(), source: error }.into());
            }
            self.unmount()?;
            self.remove_files()?;
            return Err(ImageError::Impossible(NoLimit::MountRefused(error.to_string())));
        }
        if !self.is_ready() {
            File::create_new(&self.ready).and_then(|file| file.sync_all()).doing("make", &self.ready)?;
        }
        Ok(())
    }

    /// Whether our image is mounted at the mount point. Fails if something else is mounted there.
    pub(super) fn is_mounted(&self) -> Result<bool, DiskError> {
        let mount = mounts::mount_at(&self.mount_point).doing("look for mounts at", &self.mount_point)?;
        let Some(mount) = mount else { return Ok(false) };
        let number = mount.source.to_str().and_then(|source| source.strip_prefix("/dev/loop")?.parse().ok());
        let attached = match (number, self.identity()) {
            (Some(number), Ok(identity)) => hold_if_attached(number, identity).is_some(),
            _ => false,
        };
        match mount.kind == "btrfs" && attached {
            true => Ok(true),
            false => Err(DiskError::ForeignMount(self.mount_point.clone())),
        }
    }

    /// Formats under another name first, so that `disk.btrfs` is always a complete file system.
    fn make(&self, options: &DiskOptions, lock: &SetupLock) -> Result<(), ImageError> {
        self.remove_files()?;
        let host = self.host_space().doing("look for free space in", self.state_dir())?;
        let Some(size) = size::first_size(host, options.max_size()) else {
            return Err(ImageError::Impossible(NoLimit::NoRoom { free: host.free, least: MIN_SIZE + host.reserve() }));
        };
        let made = self.format(size, size::is_mixed(host, options.max_size()), &options.mkfs_program, lock);
        if made.is_err() {
            remove_if_there(&self.new)?;
        }
        made
    }

    fn format(&self, size: u64, is_mixed: bool, mkfs_program: &Path, lock: &SetupLock) -> Result<(), ImageError> {
        let file = create_private(&self.new).doing("make", &self.new)?;
        // On a copy-on-write file system, every write to the image would fragment it. Other file systems do not know
        // the flag.
        rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::NOCOW).ok();
        allocate(&file, 0, size).map_err(|error| ImageError::Impossible(NoLimit::CannotAllocate(error.to_string())))?;
        mkfs::run(mkfs_program, &self.new, is_mixed, lock).map_err(ImageError::Impossible)?;
        file.sync_all().doing("write out", &self.new)?;
        std::fs::rename(&self.new, &self.file).doing("rename", &self.new)?;
        Ok(())
    }

    fn mount(&self) -> io::Result<()> {
        let device = self.attach()?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        rustix::mount::mount(device.path(), &self.mount_point, c"btrfs", flags, MOUNT_OPTIONS)?;
        Ok(())
    }

    /// Attaches the image to a loop device. If another mount namespace still has the image mounted, its device is used:
    /// two devices on one file would be two file systems that destroy each other.
    fn attach(&self) -> io::Result<LoopDevice> {
        let identity = self.identity()?;
        if let Some(device) = candidates()?.into_iter().find_map(|number| hold_if_attached(number, identity)) {
            return Ok(device);
        }
        let file = OpenOptions::new().read(true).write(true).open(&self.file)?;
        LoopDevice::attach(file.as_fd())
    }

    fn identity(&self) -> io::Result<BackingFile> {
        let metadata = std::fs::symlink_metadata(&self.file)?;
        Ok(BackingFile { device: metadata.dev(), inode: metadata.ino() })
    }

    /// The space in the image and on the host's disk. The image must be mounted.
    pub(super) fn space(&self, max_size: u64) -> io::Result<ImageSpace> {
        let size = self.file.metadata()?.len();
        let root = folder::open_path(&self.mount_point)?;
        let inside = free_space::read(&btrfs::filesystem_uuid(root.as_fd())?, size)?;
        let (free, is_starved) = (inside.free, inside.is_starved);
        Ok(ImageSpace { size, free, is_starved, host: self.host_space()?, max_size })
    }

    /// Grows or shrinks the image while it is in use. The caller must hold the lock.
    pub(super) fn resize(&self, size: u64) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(&self.file)?;
        let old = file.metadata()?.len();
        match size.cmp(&old) {
            Ordering::Equal => Ok(()),
            Ordering::Greater => {
                if let Err(error) = allocate(&file, old, size - old) {
                    // Nothing uses the part that was added so far, so it can be removed.
                    file.set_len(old)?;
                    return Err(error);
                }
                self.fit_to_file(None)
            }
            Ordering::Less => {
                self.fit_to_file(Some(size))?;
                file.set_len(size)?;
                self.device()?.refresh_size()
            }
        }
    }

    /// Makes the mounted file system as large as the file, or as small as `size`.
    fn fit_to_file(&self, size: Option<u64>) -> io::Result<()> {
        self.device()?.refresh_size()?;
        btrfs::resize(folder::open_path(&self.mount_point)?.as_fd(), size)
    }

    /// The loop device of the image.
    fn device(&self) -> io::Result<LoopDevice> {
        let identity = self.identity()?;
        let mut found = candidates()?.into_iter().filter_map(|number| hold_if_attached(number, identity));
        found.next().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Allocates the blocks that are missing. Images of earlier versions have holes, and after a kill the file system
    /// may not match the size of its file. If this fails, the image is still usable, but a full disk of the host would
    /// break it, so a warning is logged.
    fn ensure_allocated(&self, options: &DiskOptions) {
        if let Err(error) = self.try_allocate_all(options.max_size()) {
            let image = self.file.display();
            tracing::warn!(%image, %error, "the disk image is not fully allocated; free space on the state directory's disk and restart");
        }
    }

    fn try_allocate_all(&self, max_size: u64) -> io::Result<()> {
        let mount = mounts::mount_at(&self.mount_point)?;
        if mount.is_some_and(|mount| mount.options.split(',').any(|option| option.starts_with("discard"))) {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
            rustix::mount::mount_remount(&self.mount_point, flags, MOUNT_OPTIONS)?;
        }
        let file = OpenOptions::new().read(true).write(true).open(&self.file)?;
        let metadata = file.metadata()?;
        let root = folder::open_path(&self.mount_point)?;
        if btrfs::device_size(root.as_fd())? < metadata.len() / 4096 * 4096 {
            self.fit_to_file(None)?;
        }
        if metadata.blocks() * 512 >= metadata.len() {
            return Ok(());
        }
        // The free part does not count: compute the size as if the image grew from its content.
        let space = self.space(max_size)?;
        let size = ImageSpace { size: space.size - space.free, free: 0, ..space }.wanted_size().max(MIN_SIZE);
        if size < metadata.len() {
            self.resize(size)?;
        }
        allocate(&file, 0, file.metadata()?.len())
    }

    fn state_dir(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    pub(super) fn host_space(&self) -> io::Result<HostSpace> {
        HostSpace::of(self.state_dir())
    }

    /// Removes an image without areas if it takes much of the host's disk. It must not be mounted.
    pub(super) fn remove_if_large(&self) -> Result<(), DiskError> {
        let size = self.file.metadata().map_or(0, |metadata| metadata.len());
        let host = self.host_space().doing("look for free space in", self.state_dir())?;
        match size > MIN_SIZE.max(host.free / IDLE_SHARE) {
            true => self.remove_files(),
            false => Ok(()),
        }
    }

    /// Removes a broken image, whether it is mounted or not. Processes that still have files open in it keep access
    /// only as far as the kernel can still serve them.
    pub(super) fn abandon(&self) -> Result<(), DiskError> {
        if self.is_mounted()? {
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            rustix::mount::unmount(&self.mount_point, flags).doing("unmount", &self.mount_point)?;
        }
        self.remove_files()
    }

    /// Unmounts the image and waits until the loop device is free.
    pub(super) fn unmount(&self) -> Result<Unmounted, DiskError> {
        let deadline = Instant::now() + BUSY_TIMEOUT;
        loop {
            match rustix::mount::unmount(&self.mount_point, UnmountFlags::NOFOLLOW) {
                Ok(()) => return self.wait_until_free(),
                Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(Errno::BUSY) => return Ok(Unmounted::Busy),
                Err(errno) => return Err(errno).doing("unmount", &self.mount_point),
            }
        }
    }

    fn wait_until_free(&self) -> Result<Unmounted, DiskError> {
        let identity = self.identity().doing("look at", &self.file)?;
        let deadline = Instant::now() + FREEING_TIMEOUT;
        loop {
            let devices = candidates().doing("read", "/sys/block")?;
            if !devices.into_iter().any(|number| hold_if_attached(number, identity).is_some()) {
                return Ok(Unmounted::Free);
            }
            if Instant::now() > deadline {
                return Ok(Unmounted::HeldElsewhere);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Removes the image and everything in it.
    pub(super) fn remove_files(&self) -> Result<(), DiskError> {
        // Remove the mark first. If the process is killed after that, the other files count as worthless and the next
        // start is a fresh one.
        [&self.ready, &self.new, &self.file].into_iter().try_for_each(|path| remove_if_there(path))
    }
}

/// Enables simple quotas if the kernel has them (6.7), otherwise full quotas.
fn ensure_quota(mount_point: &Path) -> io::Result<()> {
    let root = folder::open_path(mount_point)?;
    if btrfs::quota_state(root.as_fd())? != QuotaState::Off {
        return Ok(());
    }
    btrfs::set_quota_state(root.as_fd(), QuotaState::Simple)
        .or_else(|_| btrfs::set_quota_state(root.as_fd(), QuotaState::Full))
}

/// Why a fresh image cannot be mounted.
fn refusal(error: &io::Error) -> NoLimit {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NODEV) => NoLimit::NoBtrfs(error.to_string()),
        Some(Errno::NOENT | Errno::NXIO) => NoLimit::NoLoopDevice(error.to_string()),
        _ => NoLimit::MountRefused(error.to_string()),
    }
}

/// The numbers of the loop devices whose file has the name of an image. The whole path is not compared, because it may
/// be different in another mount namespace.
fn candidates() -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok());
        let Some(number) = number else { continue };
        // A device without a file has no such entry.
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if file.contains(FILE_NAME) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

/// Opens the device, if it has this file. While the device is open it keeps the file, so it cannot get another one in
/// between.
fn hold_if_attached(number: u32, identity: BackingFile) -> Option<LoopDevice> {
    // A device that is being freed, or whose node is missing, is not ours.
    let device = LoopDevice::open(number).ok()?;
    (device.backing_file().ok()? == Some(identity)).then_some(device)
}

/// Allocates blocks for a part of the file and keeps its content.
fn allocate(file: &File, offset: u64, length: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), offset, length) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().create_new(true).read(true).write(true).mode(0o600).open(path)
}

fn remove_if_there(path: &Path) -> Result<(), DiskError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).doing("remove", path),
        _ => Ok(()),
    }
}

/// The space on the file system of `path` that is free for unprivileged users.
pub(super) fn free_bytes(path: &Path) -> io::Result<u64> {
    let figures = rustix::fs::statvfs(path)?;
    Ok(figures.f_bavail.saturating_mul(figures.f_frsize))
}
