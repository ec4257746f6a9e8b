//! A full copy of the host's `/usr`, for hosts whose `/usr` cannot be id-mapped, and for operators who want a base that
//! does not change under running sandboxes. Blocks are shared with the original if the file system supports it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use super::error::BaseError;
use super::host::{Host, kind};
use super::layer::{Layer, Meta};
use super::usr_scan::UsrScan;

/// Copies all of `/usr` except `/usr/local` and what must be hidden.
pub(super) fn copy_usr(host: &Host, layer: &Layer, scan: &UsrScan) -> Result<(), BaseError> {
    let left_out = scan.masked.iter().map(|(path, _)| path.as_path()).chain([Path::new("local")]).collect();
    let mut copy = FrozenCopy { host, layer, left_out, linked: HashMap::new(), can_clone: true };
    copy.children(Path::new(""))
}

struct FrozenCopy<'a> {
    host: &'a Host,
    layer: &'a Layer,
    left_out: HashSet<&'a Path>,
    /// The first path of each file that has several hard links.
    linked: HashMap<(u64, u64), PathBuf>,
    /// True until the file system refuses a clone.
    can_clone: bool,
}

impl FrozenCopy<'_> {
    fn children(&mut self, directory: &Path) -> Result<(), BaseError> {
        for name in self.host.list(&Path::new("usr").join(directory)) {
            let relative = directory.join(name);
            if !self.left_out.contains(relative.as_path()) {
                self.entry(&relative)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, relative: &Path) -> Result<(), BaseError> {
        let source = Path::new("usr").join(relative);
        // Skip an entry that was removed after it was listed.
        let Some(stat) = self.host.stat(&source) else { return Ok(()) };
        match kind(&stat) {
            FileType::Directory => {
                self.layer.dir_at(relative, Meta::of_host(&stat))?;
                self.children(relative)
            }
            FileType::Symlink => {
                let Some(target) = self.host.read_link(&source) else { return Ok(()) };
                self.layer.symlink_at(relative, &target, Meta::of_host(&stat))
            }
            FileType::RegularFile => self.file(&source, relative, &stat),
            _ => Ok(()),
        }
    }

    fn file(&mut self, source: &Path, relative: &Path, stat: &Stat) -> Result<(), BaseError> {
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.linked.get(&identity) {
            return self.layer.hard_link(first, relative);
        }
        if stat.st_nlink > 1 {
            self.linked.insert(identity, relative.to_owned());
        }
        let failed = |errno| BaseError::Host { path: self.host.path().join(source), source: errno };
        let original = File::from(self.host.open(source, OFlags::RDONLY | OFlags::NONBLOCK).map_err(failed)?);
        let copy = File::from(self.layer.create_file(relative)?);
        self.contents(&original, &copy).map_err(failed)?;
        self.layer.finish_file(relative, &copy, Meta::of_host(stat))?;
        copy_capabilities(&original, &copy).map_err(failed)
    }

    fn contents(&mut self, mut original: &File, mut copy: &File) -> Result<(), Errno> {
        if self.can_clone {
            match rustix::fs::ioctl_ficlone(copy, original) {
                Ok(()) => return Ok(()),
                Err(_) => self.can_clone = false,
            }
        }
        let copied = std::io::copy(&mut original, &mut copy);
        copied.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

/// Copies file capabilities. This comes after the owner is set, because a change of owner removes them.
fn copy_capabilities(original: &File, copy: &File) -> Result<(), Errno> {
    let mut value = [0_u8; 64];
    match rustix::fs::fgetxattr(original, CAPABILITY, &mut value) {
        Ok(length) => rustix::fs::fsetxattr(copy, CAPABILITY, &value[..length], XattrFlags::empty()),
        Err(_) => Ok(()),
    }
}

const CAPABILITY: &str = "security.capability";
