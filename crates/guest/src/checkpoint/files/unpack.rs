//! Writes the files of a stream, as it arrives.
//!
//! The stream is not trusted: whoever was root in the other sandbox has decided what is in it. So nothing outside of a place is
//! reached: paths are checked as they are written, and opened without following links or crossing mounts.

use std::io;
use std::os::fd::OwnedFd;

use bytes::{Buf, BytesMut};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags, openat2};
use rustix::io::Errno;

use crate::checkpoint::files::entry::{EXTENT_LENGTH, Entry, HEAD_LENGTH, Head, Kind, MAGIC};
use crate::checkpoint::files::memory::Place;

#[derive(Debug, thiserror::Error)]
pub(super) enum UnpackError {
    #[error("the stream of files is invalid: {0}")]
    Invalid(&'static str),
    #[error("the stream has files of directory number {0}, which is not in memory in this sandbox")]
    NotInMemory(u8),
    #[error("cannot restore {path}: {source}")]
    Write { path: String, source: io::Error },
}

#[derive(Debug)]
pub(super) struct Unpack {
    places: Vec<Place>,
    /// What has arrived and was not used yet.
    buffer: BytesMut,
    expected: Expected,
}

/// What comes next in the stream.
#[derive(Debug)]
enum Expected {
    Magic,
    Entry,
    Extent(NewFile),
    Data {
        file: NewFile,
        offset: u64,
        left: usize,
    },
    /// After the end, nothing.
    Nothing,
}

/// A file whose data is being written.
#[derive(Debug)]
struct NewFile {
    descriptor: OwnedFd,
    entry: Entry,
}

impl Unpack {
    pub(super) fn new(places: Vec<Place>) -> Self {
        Self { places, buffer: BytesMut::new(), expected: Expected::Magic }
    }

    /// Takes the next bytes of the stream.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), UnpackError> {
        self.buffer.extend_from_slice(bytes);
        while self.step()? {}
        Ok(())
    }

    /// The stream is over: checks that it was whole.
    pub(super) fn finish(self) -> Result<(), UnpackError> {
        match self.expected {
            Expected::Nothing => Ok(()),
            _ => Err(UnpackError::Invalid("it is cut")),
        }
    }

    /// Returns false if more bytes are needed.
    fn step(&mut self) -> Result<bool, UnpackError> {
        match std::mem::replace(&mut self.expected, Expected::Entry) {
            Expected::Magic => self.take_magic(),
            Expected::Entry => self.take_entry(),
            Expected::Extent(file) => self.take_extent(file),
            Expected::Data { file, offset, left } => self.take_data(file, offset, left),
            Expected::Nothing if self.buffer.is_empty() => self.wait(Expected::Nothing),
            Expected::Nothing => Err(UnpackError::Invalid("something follows its end")),
        }
    }

    fn wait(&mut self, expected: Expected) -> Result<bool, UnpackError> {
        self.expected = expected;
        Ok(false)
    }

    fn take_magic(&mut self) -> Result<bool, UnpackError> {
        if self.buffer.len() < MAGIC.len() {
            return self.wait(Expected::Magic);
        }
        if self.buffer.split_to(MAGIC.len()) != MAGIC[..] {
            return Err(UnpackError::Invalid("it has another format"));
        }
        Ok(true)
    }

    fn take_entry(&mut self) -> Result<bool, UnpackError> {
        let Some(head) = self.buffer.get(..HEAD_LENGTH) else { return self.wait(Expected::Entry) };
        let head = Head::parse(head).ok_or(UnpackError::Invalid("an entry is malformed"))?;
        let length = HEAD_LENGTH + head.names_length();
        if self.buffer.len() < length {
            return self.wait(Expected::Entry);
        }
        let bytes = self.buffer.split_to(length);
        let entry = Entry::parse(head, &bytes[HEAD_LENGTH..]);
        let entry = entry.ok_or(UnpackError::Invalid("a path leaves its directory, or attributes are malformed"))?;
        if head.kind == Kind::End {
            self.expected = Expected::Nothing;
            return Ok(true);
        }
        self.create(entry)?;
        Ok(true)
    }

    fn create(&mut self, entry: Entry) -> Result<(), UnpackError> {
        let place = self.places.iter().find(|place| place.number == entry.head.place);
        let place = place.ok_or(UnpackError::NotInMemory(entry.head.place))?;
        let created = create(place, &entry).map_err(|error| failed(place, &entry, error))?;
        if let Some(descriptor) = created {
            self.expected = Expected::Extent(NewFile { descriptor, entry });
        }
        Ok(())
    }

    fn take_extent(&mut self, file: NewFile) -> Result<bool, UnpackError> {
        if self.buffer.len() < EXTENT_LENGTH {
            return self.wait(Expected::Extent(file));
        }
        let (offset, left) = (self.buffer.get_u64_le(), self.buffer.get_u32_le());
        if left == 0 {
            self.complete(&file)?;
            return Ok(true);
        }
        if offset.checked_add(left.into()).is_none_or(|end| end > file.entry.head.size) {
            return Err(UnpackError::Invalid("data lies behind the end of its file"));
        }
        self.expected = Expected::Data { file, offset, left: left as usize };
        Ok(true)
    }

    fn take_data(&mut self, file: NewFile, offset: u64, left: usize) -> Result<bool, UnpackError> {
        if self.buffer.is_empty() {
            return self.wait(Expected::Data { file, offset, left });
        }
        let data = &self.buffer[..left.min(self.buffer.len())];
        let written = rustix::io::pwrite(&file.descriptor, data, offset);
        let written = written.map_err(|error| self.failed(&file.entry, error))?;
        self.buffer.advance(written);
        self.expected = match left - written {
            0 => Expected::Extent(file),
            left => Expected::Data { file, offset: offset + written as u64, left },
        };
        Ok(true)
    }

    /// Sets what writing would change.
    fn complete(&self, file: &NewFile) -> Result<(), UnpackError> {
        set_all(&file.descriptor, &file.entry).map_err(|error| self.failed(&file.entry, error))
    }

    fn failed(&self, entry: &Entry, error: Errno) -> UnpackError {
        match self.places.iter().find(|place| place.number == entry.head.place) {
            Some(place) => failed(place, entry, error),
            None => UnpackError::NotInMemory(entry.head.place),
        }
    }
}

fn failed(place: &Place, entry: &Entry, error: Errno) -> UnpackError {
    let path = format!("{}/{}", place.path, String::from_utf8_lossy(&entry.path));
    UnpackError::Write { path, source: error.into() }
}

/// Creates what the entry describes, in the place of what is there. Returns the file if it has data.
fn create(place: &Place, entry: &Entry) -> rustix::io::Result<Option<OwnedFd>> {
    if entry.path.is_empty() {
        return match entry.head.kind {
            Kind::Directory => set_all(&place.directory, entry).map(|()| None),
            _ => Err(Errno::INVAL),
        };
    }
    let (parent, name) = open_parent(place, &entry.path)?;
    match entry.head.kind {
        Kind::End => {}
        Kind::Directory => set_all(&ensure_directory(&parent, name)?, entry)?,
        Kind::File => {
            remove(&parent, name)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?;
            rustix::fs::ftruncate(&file, entry.head.size)?;
            return Ok(Some(file));
        }
        Kind::Symlink => {
            remove(&parent, name)?;
            rustix::fs::symlinkat(&*entry.target, &parent, name)?;
            set_owner_and_times(&parent, name, entry)?;
        }
        Kind::Link => {
            let (first_parent, first_name) = open_parent(place, &entry.target)?;
            remove(&parent, name)?;
            rustix::fs::linkat(&first_parent, first_name, &parent, name, AtFlags::empty())?;
        }
        Kind::Fifo => {
            remove(&parent, name)?;
            rustix::fs::mknodat(&parent, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            // Nobody but the guest runs in a sandbox that is being restored, so this is still the FIFO.
            rustix::fs::chmodat(&parent, name, Mode::from_raw_mode(entry.head.mode), AtFlags::empty())?;
            set_owner_and_times(&parent, name, entry)?;
        }
    }
    Ok(None)
}

/// Opens the directory that holds an entry. A link on the way, or a mount, is an error.
fn open_parent<'a>(place: &Place, path: &'a [u8]) -> rustix::io::Result<(OwnedFd, &'a [u8])> {
    let (parent, name) = match memchr::memrchr(b'/', path) {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b"."[..], path),
    };
    if name.is_empty() {
        return Err(Errno::INVAL);
    }
    Ok((open_beneath(&place.directory, parent)?, name))
}

fn open_beneath(directory: &OwnedFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    openat2(directory, path, flags, Mode::empty(), resolve)
}

fn ensure_directory(parent: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    match open_beneath(parent, name) {
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR | Errno::LOOP) => remove(parent, name)?,
        opened => return opened,
    }
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    open_beneath(parent, name)
}

/// Removes what has this name, unless it is a directory with something in it.
fn remove(parent: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR),
        Err(error) => Err(error),
    }
}

/// The owner first: a change of it takes away the right to run as another user.
fn set_all(file: &OwnedFd, entry: &Entry) -> rustix::io::Result<()> {
    let head = &entry.head;
    rustix::fs::fchown(file, Some(Uid::from_raw(head.uid)), Some(Gid::from_raw(head.gid)))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(head.mode))?;
    for (name, value) in &entry.attributes {
        // Not every sandbox may set every attribute.
        let _ = rustix::fs::fsetxattr(file, &**name, value, XattrFlags::empty());
    }
    rustix::fs::futimens(file, &times(head))
}

fn set_owner_and_times(parent: &OwnedFd, name: &[u8], entry: &Entry) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(entry.head.uid), Gid::from_raw(entry.head.gid));
    rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::utimensat(parent, name, &times(&entry.head), AtFlags::SYMLINK_NOFOLLOW)
}

fn times(head: &Head) -> Timestamps {
    let time = Timespec { tv_sec: head.seconds, tv_nsec: head.nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::checkpoint::files::pack::Pack;

    fn place(directory: &Path) -> Place {
        let descriptor = File::open(directory).unwrap().into();
        Place { number: 0, path: directory.to_str().unwrap().to_owned(), directory: descriptor }
    }

    fn pack(directory: &Path) -> Vec<u8> {
        let (mut pack, mut stream) = (Pack::new(vec![place(directory)]), Vec::new());
        while let Some(piece) = pack.next().unwrap() {
            stream.extend(piece);
        }
        stream
    }

    fn unpack(directory: &Path, stream: &[u8], cut: usize) -> Result<(), UnpackError> {
        let mut unpack = Unpack::new(vec![place(directory)]);
        for piece in stream.chunks(cut) {
            unpack.put(piece)?;
        }
        unpack.finish()
    }

    fn entry(kind: Kind, path: &str, target: &str) -> Entry {
        let head = Head { mode: 0o644, ..Head::new(kind, 0) };
        Entry { head, path: path.into(), target: target.into(), attributes: Vec::new() }
    }

    /// A stream that no guest would write.
    fn stream(entries: &[Entry]) -> Vec<u8> {
        let mut stream = MAGIC.to_vec();
        for entry in entries {
            entry.encode(&mut stream).unwrap();
            if entry.head.kind == Kind::File {
                stream.extend([0; EXTENT_LENGTH]);
            }
        }
        entry(Kind::End, "", "").encode(&mut stream).unwrap();
        stream
    }

    /// What is in a directory: mode, owner, time, content.
    fn tree(root: &Path) -> BTreeMap<String, (u32, u32, i64, String)> {
        let (mut found, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
        while let Some(path) = left.pop() {
            let meta = path.symlink_metadata().unwrap();
            let mut content = String::new();
            if meta.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if meta.is_symlink() {
                content = fs::read_link(&path).unwrap().to_str().unwrap().to_owned();
            } else if meta.is_file() {
                content = format!("{} {:x?}", meta.nlink(), fs::read(&path).unwrap());
            }
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.insert(name, (meta.mode(), meta.uid(), meta.mtime_nsec() ^ meta.mtime(), content));
        }
        found
    }

    fn various_files(directory: &Path) {
        fs::create_dir_all(directory.join("a/b/empty")).unwrap();
        fs::write(directory.join("a/file"), "content").unwrap();
        fs::write(directory.join("a/set-uid"), "x").unwrap();
        fs::set_permissions(directory.join("a/set-uid"), fs::Permissions::from_mode(0o4711)).unwrap();
        fs::hard_link(directory.join("a/file"), directory.join("a/b/same")).unwrap();
        symlink("/nowhere/\u{e9}", directory.join("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, directory.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(directory.join("socket")).unwrap();
        fs::set_permissions(directory.join("a/b"), fs::Permissions::from_mode(0o1500)).unwrap();
    }

    #[test]
    fn files_come_back_with_all_that_belongs_to_them_and_without_sockets() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        various_files(from.path());
        // What is in the way is replaced.
        fs::create_dir(to.path().join("a")).unwrap();
        fs::create_dir(to.path().join("a/file")).unwrap();
        fs::write(to.path().join("link"), "in the way").unwrap();
        symlink("/etc/passwd", to.path().join("fifo")).unwrap();
        let stream = pack(from.path());
        fs::remove_file(from.path().join("socket")).unwrap();
        let expected = tree(from.path());
        for cut in [1, 7, 1000, usize::MAX] {
            unpack(to.path(), &stream, cut).unwrap();
            let mut found = tree(to.path());
            let mut expected = expected.clone();
            // The directory itself has changed since: the socket is gone.
            expected.remove("");
            found.remove("");
            assert_eq!(found, expected, "{cut}");
        }
    }

    #[test]
    fn holes_stay_holes() {
        let (from, to) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let file = File::create(from.path().join("sparse")).unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"far away", 1 << 39).unwrap();
        let stream = pack(from.path());
        assert!(stream.len() < 100_000);
        unpack(to.path(), &stream, 4096).unwrap();
        let copy = File::open(to.path().join("sparse")).unwrap();
        let mut data = [0; 8];
        copy.read_exact_at(&mut data, 1 << 39).unwrap();
        let meta = copy.metadata().unwrap();
        assert_eq!((&data, meta.len()), (b"far away", 1 << 40));
        assert!(meta.blocks() < 1000);
    }

    #[test]
    fn a_link_does_not_lead_out_of_the_directory() {
        let (outside, inside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let outside_path = outside.path().to_str().unwrap();
        let hostile = [
            vec![entry(Kind::Symlink, "out", outside_path), entry(Kind::File, "out/file", "")],
            vec![entry(Kind::Symlink, "out", outside_path), entry(Kind::Symlink, "out/link", "x")],
            vec![entry(Kind::Symlink, "out", outside_path), entry(Kind::Fifo, "out/fifo", "")],
            vec![entry(Kind::Symlink, "out", outside_path), entry(Kind::Directory, "out/directory", "")],
            vec![entry(Kind::Symlink, "out", ".."), entry(Kind::Directory, "out/directory", "")],
            vec![entry(Kind::Symlink, "out", "/etc"), entry(Kind::Link, "passwd", "out/passwd")],
        ];
        for entries in hostile {
            let refused = unpack(inside.path(), &stream(&entries), 50);
            assert!(matches!(refused, Err(UnpackError::Write { .. })), "{entries:?}: {refused:?}");
            assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{entries:?}");
            assert!(!inside.path().join("passwd").exists());
        }
        // A directory takes the place of a link, and files take the place of links to files.
        let secret = outside.path().join("secret");
        fs::write(&secret, "old").unwrap();
        symlink(&secret, inside.path().join("file")).unwrap();
        unpack(inside.path(), &stream(&[entry(Kind::Directory, "out", ""), entry(Kind::File, "file", "")]), 9).unwrap();
        assert!(inside.path().join("out").symlink_metadata().unwrap().is_dir());
        assert!(inside.path().join("file").symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "old");
    }

    #[test]
    fn a_second_name_of_a_link_is_the_link_itself() {
        let inside = tempfile::tempdir().unwrap();
        let entries = [entry(Kind::Symlink, "out", "/etc/passwd"), entry(Kind::Link, "second", "out")];
        unpack(inside.path(), &stream(&entries), 1000).unwrap();
        assert!(inside.path().join("second").is_symlink());
    }

    #[test]
    fn invalid_streams_are_refused() {
        let inside = tempfile::tempdir().unwrap();
        let whole = stream(&[entry(Kind::File, "file", "")]);
        let refused = |stream: &[u8]| unpack(inside.path(), stream, 11).unwrap_err().to_string();
        for length in [0, 5, MAGIC.len(), MAGIC.len() + 10, whole.len() - 1] {
            assert!(refused(&whole[..length]).contains("cut"), "{length}");
        }
        assert!(refused(&[&whole[..], b"x"].concat()).contains("follows its end"));
        assert!(refused(b"not such a stream at all").contains("format"));
        let elsewhere = Entry { head: Head::new(Kind::File, 2), ..entry(Kind::File, "file", "") };
        assert!(refused(&stream(&[elsewhere])).contains("not in memory"));
        let mut behind = whole[..MAGIC.len() + HEAD_LENGTH + 4].to_vec();
        behind.extend([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, b'x']);
        assert!(refused(&behind).contains("behind the end"));
    }

    proptest! {
        #[test]
        fn no_stream_panics_or_leaves_the_directory(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            at in 0usize..400,
        ) {
            let (parent, from) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            various_files(from.path());
            let to = parent.path().join("to");
            fs::create_dir(&to).unwrap();
            let mut changed = pack(from.path());
            let at = at.min(changed.len());
            let end = (at + bytes.len()).min(changed.len());
            changed.splice(at..end, bytes);
            let _ = unpack(&to, &changed, 64);
            prop_assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
        }
    }
}
