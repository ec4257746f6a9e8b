//! Writes the stream of files, a piece at a time.
//!
//! Processes are stopped, but clients may change files through the guest meanwhile. A file that disappears is left out.
//! Sockets are left out too: CRIU makes those again that a process listens on. What is mounted inside a place is not part of it.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bytes::BufMut;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Stat, openat2};
use rustix::io::Errno;

use crate::checkpoint::files::entry::{Entry, Head, Kind, MAGIC};
use crate::checkpoint::files::memory::Place;

/// About the size of one piece.
const PIECE: usize = 256 << 10;
/// How many directories may be inside each other. Each needs a descriptor.
const MAX_DEPTH: usize = 256;

#[derive(Debug)]
pub(super) struct Pack {
    /// The next is last.
    places: Vec<Place>,
    /// The directories on the way to where it is.
    directories: Vec<Directory>,
    /// The file whose data comes next.
    file: Option<OpenFile>,
    /// The first name of each file that has several, by its inode.
    linked: HashMap<u64, Vec<u8>>,
    out: Vec<u8>,
    done: bool,
}

#[derive(Debug)]
struct Directory {
    place: u8,
    descriptor: OwnedFd,
    path: Vec<u8>,
    /// The next is last.
    names: Vec<CString>,
    /// Written once more at the end.
    entry: Entry,
}

#[derive(Debug)]
struct OpenFile {
    descriptor: OwnedFd,
    offset: u64,
    size: u64,
}

impl Pack {
    pub(super) fn new(mut places: Vec<Place>) -> Self {
        places.reverse();
        let (directories, linked) = (Vec::new(), HashMap::new());
        Self { places, directories, file: None, linked, out: MAGIC.to_vec(), done: false }
    }

    /// The next piece. None at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        while self.out.len() < PIECE && !self.done {
            self.step()?;
        }
        let piece = std::mem::take(&mut self.out);
        Ok((!piece.is_empty()).then_some(piece))
    }

    fn step(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return self.put_data();
        }
        let Some(directory) = self.directories.last_mut() else { return self.next_place() };
        match directory.names.pop() {
            Some(name) => self.put_name(&name),
            None => self.leave(),
        }
    }

    fn next_place(&mut self) -> io::Result<()> {
        self.linked.clear();
        match self.places.pop() {
            Some(Place { number, directory, .. }) => self.enter(number, directory, Vec::new()),
            None => {
                self.done = true;
                self.put(&Entry { head: Head::new(Kind::End, 0), path: vec![], target: vec![], attributes: vec![] })
            }
        }
    }

    fn enter(&mut self, place: u8, descriptor: OwnedFd, path: Vec<u8>) -> io::Result<()> {
        if self.directories.len() == MAX_DEPTH {
            return Err(io::Error::other("directories in memory are too deep for a checkpoint"));
        }
        let head = head(Kind::Directory, place, &rustix::fs::fstat(&descriptor)?);
        let entry = Entry { head, path: path.clone(), target: Vec::new(), attributes: attributes(&descriptor) };
        self.put(&entry)?;
        let names = names(&descriptor)?;
        self.directories.push(Directory { place, descriptor, path, names, entry });
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some(directory) = self.directories.pop() else { return Ok(()) };
        self.put(&directory.entry)
    }

    fn put_name(&mut self, name: &CStr) -> io::Result<()> {
        let Some(directory) = self.directories.last() else { return Ok(()) };
        let stat = match rustix::fs::statat(&directory.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        let mut path = directory.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let place = directory.place;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => match open(&directory.descriptor, name, OFlags::DIRECTORY)? {
                Some(descriptor) => self.enter(place, descriptor, path),
                None => Ok(()),
            },
            FileType::RegularFile => self.put_file(name, path),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&directory.descriptor, name, Vec::new())?.into_bytes();
                self.put(&Entry { head: head(Kind::Symlink, place, &stat), path, target, attributes: vec![] })
            }
            FileType::Fifo => {
                let head = head(Kind::Fifo, place, &stat);
                self.put(&Entry { head, path, target: vec![], attributes: vec![] })
            }
            _ => Ok(()),
        }
    }

    fn put_file(&mut self, name: &CStr, path: Vec<u8>) -> io::Result<()> {
        let Some(directory) = self.directories.last() else { return Ok(()) };
        let place = directory.place;
        let Some(descriptor) = open(&directory.descriptor, name, OFlags::NONBLOCK)? else { return Ok(()) };
        let stat = rustix::fs::fstat(&descriptor)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        if stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&stat.st_ino) {
                let target = first.clone();
                return self.put(&Entry { head: head(Kind::Link, place, &stat), path, target, attributes: vec![] });
            }
            self.linked.insert(stat.st_ino, path.clone());
        }
        let size = stat.st_size.unsigned_abs();
        let head = Head { size, ..head(Kind::File, place, &stat) };
        self.put(&Entry { head, path, target: vec![], attributes: attributes(&descriptor) })?;
        self.file = Some(OpenFile { descriptor, offset: 0, size });
        Ok(())
    }

    /// Writes the next data of the file, or its end.
    fn put_data(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Some((offset, length)) = file.next_extent()? {
            let mut data = vec![0; length];
            let read = rustix::io::pread(&file.descriptor, &mut data, offset)?;
            if read > 0 {
                self.out.put_u64_le(offset);
                self.out.put_u32_le(read as u32);
                self.out.extend_from_slice(&data[..read]);
                file.offset = offset + read as u64;
                return Ok(());
            }
        }
        self.file = None;
        self.out.put_u64_le(0);
        self.out.put_u32_le(0);
        Ok(())
    }

    fn put(&mut self, entry: &Entry) -> io::Result<()> {
        entry.encode(&mut self.out).ok_or_else(|| io::Error::other("a path in memory is too long for a checkpoint"))
    }
}

impl OpenFile {
    /// The next data that is not a hole: its offset, and how much of it fits into a piece.
    fn next_extent(&self) -> io::Result<Option<(u64, usize)>> {
        let start = match rustix::fs::seek(&self.descriptor, SeekFrom::Data(self.offset)) {
            Err(Errno::NXIO) => return Ok(None),
            start => start?,
        };
        let end = rustix::fs::seek(&self.descriptor, SeekFrom::Hole(start))?.min(self.size);
        let length = end.saturating_sub(start).min(PIECE as u64) as usize;
        Ok((length > 0).then_some((start, length)))
    }
}

fn head(kind: Kind, place: u8, stat: &Stat) -> Head {
    Head {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        seconds: stat.st_mtime,
        nanoseconds: stat.st_mtime_nsec as u32,
        ..Head::new(kind, place)
    }
}

/// Opens what a directory itself holds. None if it is gone, or if something is mounted there.
fn open(directory: &OwnedFd, name: &CStr, flags: OFlags) -> io::Result<Option<OwnedFd>> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match openat2(directory, name, flags, Mode::empty(), resolve) {
        Ok(descriptor) => Ok(Some(descriptor)),
        Err(Errno::NOENT | Errno::XDEV | Errno::LOOP | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// Its extended attributes, as far as they can be read.
fn attributes(file: impl AsFd) -> Vec<(Vec<u8>, Vec<u8>)> {
    let Ok(length @ 1..) = rustix::fs::flistxattr_query(&file) else { return Vec::new() };
    let mut list = vec![0; length];
    let Ok(length) = rustix::fs::flistxattr(&file, &mut list) else { return Vec::new() };
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.filter_map(|name| Some((name.to_vec(), attribute(&file, name)?))).collect()
}

fn attribute(file: impl AsFd, name: &[u8]) -> Option<Vec<u8>> {
    let length = rustix::fs::fgetxattr_query(&file, name).ok()?;
    let mut value = vec![0; length];
    let length = if length == 0 { 0 } else { rustix::fs::fgetxattr(&file, name, &mut value).ok()? };
    value.truncate(length);
    Some(value)
}
