//! Copies one name of a directory that is not a directory itself.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;

use isopod_isolation::sys::lease;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, linkat, mknodat, openat, openat2};
use rustix::fs::{readlinkat, statat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::version::{Version, now};
use super::walk::Walk;
use super::{attributes, content};
use crate::folder;
use crate::tree;

/// A file of the source, held by a descriptor. Its name may mean something else by now.
struct Source {
    /// Open by path only, which has no effect on FIFOs and devices.
    pinned: OwnedFd,
    /// The content of a regular file.
    content: Option<File>,
    stat: Stat,
}

impl Source {
    fn open(directory: &OwnedFd, name: &CStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pinned = openat2(directory, name, flags, Mode::empty(), folder::STAY_BELOW)?;
        let mut stat = fstat(&pinned)?;
        let mut content = None;
        if kind(&stat) == FileType::RegularFile {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            content = Some(File::from(openat(CWD, attributes::path_of(&pinned), flags, Mode::empty())?));
            stat = fstat(&pinned)?;
        }
        Ok(Self { pinned, content, stat })
    }

    /// Looks at it again. Each change that is not yet in what will be copied gives another version then, if this is true.
    fn is_settled(&mut self) -> io::Result<bool> {
        let now = now();
        // Where it cannot be told, somebody may write.
        let is_written =
            self.content.as_ref().is_some_and(|file| lease::is_open_for_writing(file.as_fd()).unwrap_or(true));
        self.stat = fstat(&self.pinned)?;
        Ok(!is_written && Version::of(&self.stat).is_settled(now))
    }
}

impl Walk<'_> {
    /// Copies a file, unless the target has it as it is now. `found` is what the name was a moment ago.
    pub(super) fn copy_entry(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, found: &Stat) -> io::Result<()> {
        let there = stat_if_there(to, name)?;
        if there.is_some_and(|there| self.is_copy_of(&there, &Version::of(found))) {
            return Ok(());
        }
        let mut source = Source::open(from, name)?;
        if self.is_running() && !source.is_settled()? {
            return Ok(());
        }
        if there.is_some() {
            tree::remove(to, name, &AtomicBool::new(false))?;
        }
        if !self.link_to_copy(to, name, &source.stat)? {
            self.copy_source(&source, to, name)?;
            self.keep_link(to, name, &source.stat)?;
        }
        Ok(())
    }

    fn is_copy_of(&self, there: &Stat, version: &Version) -> bool {
        self.copy.versions.get(&there.st_ino) == Some(version)
    }

    fn copy_source(&mut self, source: &Source, to: &OwnedFd, name: &CStr) -> io::Result<()> {
        let writer = create(source, to, name)?;
        let target = openat(to, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let inode = fstat(&target)?.st_ino;
        // A removed file may have had this number.
        self.copy.versions.remove(&inode);
        if let (Some(content), Some(writer)) = (&source.content, &writer) {
            self.copy_content(content, writer, source.stat.st_size as u64)?;
        }
        attributes::copy(&source.pinned, &target, &source.stat)?;
        self.amount.files += 1;
        // Where nothing changes any more, only the other names of a file ask for its version.
        if self.is_running() || source.stat.st_nlink > 1 {
            self.copy.versions.insert(inode, Version::of(&source.stat));
        }
        Ok(())
    }

    fn copy_content(&mut self, source: &File, target: &File, size: u64) -> io::Result<()> {
        if size == 0 {
            return Ok(());
        }
        self.copy.can_clone = self.copy.can_clone && content::clone(source, target);
        if self.copy.can_clone {
            return Ok(());
        }
        let most = self.bytes_left();
        content::copy(source, target, size, most, self.until(), &mut self.amount.bytes)
    }

    /// Makes the name a link to the copy that another name of the same file has, if there is one.
    fn link_to_copy(&self, to: &OwnedFd, name: &CStr, stat: &Stat) -> io::Result<bool> {
        if stat.st_nlink < 2 {
            return Ok(false);
        }
        let kept = link_name(stat);
        match stat_if_there(&self.copy.links, kept.as_str())? {
            Some(there) if self.is_copy_of(&there, &Version::of(stat)) => {
                match linkat(&self.copy.links, kept.as_str(), to, name, AtFlags::empty()) {
                    Ok(()) => Ok(true),
                    // The copy has one name more than its source, which may have as many as there can be.
                    Err(Errno::MLINK) => Ok(false),
                    Err(errno) => Err(errno.into()),
                }
            }
            _ => Ok(false),
        }
    }

    /// Keeps the new copy for the other names of its file.
    fn keep_link(&self, to: &OwnedFd, name: &CStr, stat: &Stat) -> io::Result<()> {
        if stat.st_nlink < 2 {
            return Ok(());
        }
        let kept = link_name(stat);
        match unlinkat(&self.copy.links, kept.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(linkat(to, name, &self.copy.links, kept.as_str(), AtFlags::empty())?)
    }
}

/// Creates an empty file of the source's kind. Returns it if it can have content.
fn create(source: &Source, to: &OwnedFd, name: &CStr) -> io::Result<Option<File>> {
    match kind(&source.stat) {
        FileType::RegularFile => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            return Ok(Some(File::from(openat(to, name, flags, Mode::RUSR | Mode::WUSR)?)));
        }
        FileType::Symlink => symlinkat(&readlinkat(&source.pinned, c"", Vec::new())?, to, name)?,
        // It has become a directory.
        FileType::Directory => return Err(Errno::ISDIR.into()),
        kind => mknodat(to, name, kind, Mode::empty(), source.stat.st_rdev)?,
    }
    Ok(None)
}

fn link_name(stat: &Stat) -> String {
    format!("{}-{}", stat.st_dev, stat.st_ino)
}

pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

pub(super) fn stat_if_there<P: rustix::path::Arg>(directory: &OwnedFd, name: P) -> io::Result<Option<Stat>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
