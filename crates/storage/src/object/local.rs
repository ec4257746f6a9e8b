//! A directory of this host as a bucket. This is the default, and tests use it.
//!
//! An object is a file, a marker is a directory, and the metadata is in the extended attribute `user.isopod`. Objects
//! are written to a staging directory and then renamed. Nothing below the root is trusted, and links are never
//! followed. Directories that become empty when an object is deleted are removed with it, like prefixes in a bucket,
//! unless they are markers themselves.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, XattrFlags};

use super::{Content, ListRequest, Listing, ObjectInfo, ObjectStore, StoreError};
use crate::attributes::Metadata;

const XATTR: &str = "user.isopod";
/// Where objects are written before they get their name. No name is ever encoded like this, see `name`.
const STAGE: &str = ".stage-%C3%A9";

/// A directory used as a bucket.
#[derive(Clone, Debug)]
pub struct DirectoryStore {
    root: Arc<Root>,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    directory: OwnedFd,
    next_stage: AtomicU64,
    /// Held exclusively while directories are removed, and shared while something is put into them.
    shape: RwLock<()>,
}

impl DirectoryStore {
    /// Opens a directory as a bucket. Creates it if necessary.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| local("open", &path.to_string_lossy(), source);
        let stage = path.join(STAGE);
        fs::create_dir_all(&stage).map_err(failed)?;
        for left in fs::read_dir(&stage).map_err(failed)?.flatten() {
            let _ = fs::remove_file(left.path());
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        Ok(Self {
            root: Arc::new(Root {
                path: path.to_owned(),
                directory,
                next_stage: AtomicU64::new(0),
                shape: RwLock::default(),
            }),
        })
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let root = self.root.clone();
        let done = tokio::task::spawn_blocking(move || work(&root)).await;
        done.map_err(|error| local("work in", "the bucket", io::Error::other(error)))?
    }
}

#[async_trait]
impl ObjectStore for DirectoryStore {
    async fn list(&self, request: &ListRequest) -> Result<Listing, StoreError> {
        let request = request.clone();
        self.run(move |root| root.list(&request)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, StoreError> {
        let key = key.to_owned();
        self.run(move |root| root.head(&key)).await
    }

    async fn get(&self, key: &str, tag: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let (key, tag) = (key.to_owned(), tag.to_owned());
        self.run(move |root| root.get(&key, &tag, range)).await
    }

    async fn put(&self, key: &str, content: Content, metadata: &Metadata) -> Result<String, StoreError> {
        let (key, metadata) = (key.to_owned(), metadata.clone());
        self.run(move |root| root.put(&key, &content, &metadata)).await
    }

    async fn copy(&self, from: &ObjectInfo, to: &str, metadata: &Metadata) -> Result<String, StoreError> {
        let (from, to, metadata) = (from.clone(), to.to_owned(), metadata.clone());
        self.run(move |root| root.copy(&from, &to, &metadata)).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let key = key.to_owned();
        self.run(move |root| root.delete(&key)).await
    }

    fn longest_part(&self) -> usize {
        crate::name::NAME_MAX
    }
}

impl Root {
    fn list(&self, request: &ListRequest) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        self.walk(&request.prefix, request.shallow, &mut listing)?;
        // Like S3, list a marker together with the entries below it.
        if let Some(marker) = self.head(&request.prefix)? {
            listing.objects.insert(0, marker);
        }
        Ok(listing)
    }

    fn walk(&self, prefix: &str, shallow: bool, listing: &mut Listing) -> Result<(), StoreError> {
        let directory = match self.open_directory(prefix) {
            Ok(directory) => directory,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(source) => return Err(local("list", prefix, source)),
        };
        let entries = rustix::fs::Dir::read_from(&directory).map_err(|error| local("list", prefix, error.into()))?;
        for entry in entries {
            let entry = entry.map_err(|error| local("list", prefix, error.into()))?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." || (prefix.is_empty() && name == STAGE) {
                continue;
            }
            let key = format!("{prefix}{name}");
            let below = format!("{key}/");
            match self.head(&key)? {
                Some(object) => listing.objects.push(object),
                None if self.open_directory(&below).is_err() => {}
                None if shallow => listing.prefixes.push(below),
                None => {
                    listing.objects.extend(self.head(&below)?);
                    self.walk(&below, false, listing)?;
                }
            }
        }
        Ok(())
    }

    fn head(&self, key: &str) -> Result<Option<ObjectInfo>, StoreError> {
        match self.open_object(key) {
            Ok(file) => self.object_info(key, &file).map_err(|source| local("look at", key, source)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(source) => Err(local("look at", key, source)),
        }
    }

    fn get(&self, key: &str, tag: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let failed = |source: io::Error| {
            if is_absent(&source) { StoreError::NotFound(key.to_owned()) } else { local("read", key, source) }
        };
        let file = self.open_object(key).map_err(failed)?;
        match self.object_info(key, &file).map_err(failed)? {
            Some(info) if info.tag == tag => {}
            _ => return Err(StoreError::Changed(key.to_owned())),
        }
        let mut buffer = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut buffer, range.start).map_err(failed)?;
        Ok(buffer.into())
    }

    fn put(&self, key: &str, content: &Content, metadata: &Metadata) -> Result<String, StoreError> {
        self.put_with(key, metadata, |file| match content {
            Content::Bytes(bytes) => file.write_all_at(bytes, 0),
            Content::File(source, size) => copy_bytes(source, file, *size),
        })
    }

    fn copy(&self, from: &ObjectInfo, to: &str, metadata: &Metadata) -> Result<String, StoreError> {
        let source = self.open_object(&from.key).map_err(|error| {
            if is_absent(&error) { StoreError::NotFound(from.key.clone()) } else { local("copy", &from.key, error) }
        })?;
        let info = self.object_info(&from.key, &source).map_err(|source| local("copy", &from.key, source))?;
        if info.is_none_or(|info| info.tag != from.tag) {
            return Err(StoreError::Changed(from.key.clone()));
        }
        self.put_with(to, metadata, |file| copy_bytes(&source, file, from.size))
    }

    fn put_with(
        &self,
        key: &str,
        metadata: &Metadata,
        write: impl Fn(&File) -> io::Result<()>,
    ) -> Result<String, StoreError> {
        match self.put_once(key, metadata, &write) {
            // Directories without objects, which an interrupted operation left, are not part of the bucket.
            Err(StoreError::Conflict(_)) if !key.ends_with('/') => {
                let shape = self.shape.write().expect("no panic while held");
                self.clear(key);
                drop(shape);
                self.put_once(key, metadata, &write)
            }
            done => done,
        }
    }

    /// Removes directories at or below a key that contain no object.
    fn clear(&self, key: &str) {
        let Ok(directory) = self.open_directory(key) else { return };
        let Ok(entries) = rustix::fs::Dir::read_from(&directory) else { return };
        let names: Vec<_> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect();
        for name in names.iter().filter(|name| *name != "." && *name != "..") {
            self.clear(&format!("{key}/{name}"));
        }
        let (parent, name) = split(key);
        if let (None, Ok(above)) = (read_xattr(&directory), self.open_directory(parent)) {
            let _ = rustix::fs::unlinkat(&above, name, AtFlags::REMOVEDIR);
        }
    }

    fn put_once(
        &self,
        key: &str,
        metadata: &Metadata,
        write: &impl Fn(&File) -> io::Result<()>,
    ) -> Result<String, StoreError> {
        let failed = |source: io::Error| {
            use rustix::io::Errno;
            match Errno::from_io_error(&source) {
                Some(Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY) => StoreError::Conflict(key.to_owned()),
                _ => local("write", key, source),
            }
        };
        let encoded = serde_json::to_vec(metadata).expect("a map of strings always serializes to JSON");
        let (parent, name) = split(key);
        if key.ends_with('/') {
            let _shape = self.shape.read().expect("no panic while held");
            let parent = self.ensure_directory(parent).map_err(failed)?;
            let marker = ensure_child(&parent, name).map_err(failed)?;
            rustix::fs::fsetxattr(&marker, XATTR, &encoded, XattrFlags::empty()).map_err(|e| failed(e.into()))?;
            return Ok(marker_tag(&encoded));
        }
        let stage = self.path.join(STAGE).join(self.next_stage.fetch_add(1, Ordering::Relaxed).to_string());
        let written = File::options().read(true).write(true).create_new(true).open(&stage).and_then(|file| {
            write(&file)?;
            rustix::fs::fsetxattr(&file, XATTR, &encoded, XattrFlags::empty())?;
            file.sync_data()?;
            let _shape = self.shape.read().expect("no panic while held");
            let parent = self.ensure_directory(parent)?;
            rustix::fs::renameat(rustix::fs::CWD, &stage, &parent, name)?;
            Ok(file)
        });
        match written {
            Ok(file) => Ok(tag(&file.metadata().map_err(failed)?)),
            Err(source) => {
                let _ = fs::remove_file(&stage);
                Err(failed(source))
            }
        }
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        let (parent, name) = split(key);
        let _shape = self.shape.write().expect("no panic while held");
        let directory = match self.open_directory(parent) {
            Ok(directory) => directory,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(source) => return Err(local("delete", key, source)),
        };
        let removed = if key.ends_with('/') {
            remove_marker(&directory, name)
        } else {
            rustix::fs::unlinkat(&directory, name, AtFlags::empty()).map_err(io::Error::from)
        };
        match removed {
            Ok(()) => self.prune(parent),
            // A directory of that name is another key.
            Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::IsADirectory => {}
            Err(source) => return Err(local("delete", key, source)),
        }
        Ok(())
    }

    /// Removes directories that are empty and not markers, from here upwards.
    fn prune(&self, prefix: &str) {
        if prefix.is_empty() {
            return;
        }
        let (parent, name) = split(prefix);
        let Ok(directory) = self.open_directory(prefix) else { return };
        if read_xattr(&directory).is_some() {
            return;
        }
        let Ok(above) = self.open_directory(parent) else { return };
        if rustix::fs::unlinkat(&above, name, AtFlags::REMOVEDIR).is_ok() {
            self.prune(parent);
        }
    }

    fn open_object(&self, key: &str) -> io::Result<File> {
        self.open(key.trim_end_matches('/'), OFlags::RDONLY | OFlags::NONBLOCK).map(File::from)
    }

    fn open_directory(&self, prefix: &str) -> io::Result<OwnedFd> {
        self.open(prefix.trim_end_matches('/'), OFlags::RDONLY | OFlags::DIRECTORY)
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let path = if path.is_empty() { "." } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(rustix::fs::openat2(&self.directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }

    fn ensure_directory(&self, prefix: &str) -> io::Result<OwnedFd> {
        let mut directory = self.open("", OFlags::RDONLY | OFlags::DIRECTORY)?;
        for part in prefix.split('/').filter(|part| !part.is_empty()) {
            directory = ensure_child(&directory, part)?;
        }
        Ok(directory)
    }

    /// An open file as an object. A directory is an object only if it is a marker.
    fn object_info(&self, key: &str, file: &File) -> io::Result<Option<ObjectInfo>> {
        let stat = file.metadata()?;
        let xattr = read_xattr(file);
        let decoded = xattr.as_deref().map(|bytes| serde_json::from_slice::<BTreeMap<_, _>>(bytes).unwrap_or_default());
        let (size, tag) = match (stat.is_dir(), key.ends_with('/') || key.is_empty()) {
            (true, true) if xattr.is_some() => (0, marker_tag(xattr.as_deref().unwrap_or_default())),
            (false, false) if stat.is_file() => (stat.len(), tag(&stat)),
            _ => return Ok(None),
        };
        let metadata = Some(decoded.unwrap_or_default());
        Ok(Some(ObjectInfo { key: key.to_owned(), size, tag, modified: stat.modified()?, metadata }))
    }
}

fn copy_bytes(from: &File, to: &File, size: u64) -> io::Result<()> {
    let mut buffer = vec![0; size.min(1 << 20) as usize];
    let mut at = 0;
    while at < size {
        let piece = &mut buffer[..(size - at).min(1 << 20) as usize];
        from.read_exact_at(piece, at)?;
        to.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}

fn ensure_child(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Removes the marker's attribute, and the directory if it is empty.
fn remove_marker(parent: &OwnedFd, name: &str) -> io::Result<()> {
    let marker = open_child(parent, name)?;
    match rustix::fs::fremovexattr(&marker, XATTR) {
        Ok(()) | Err(rustix::io::Errno::NODATA) => {}
        Err(error) => return Err(error.into()),
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(rustix::io::Errno::NOTEMPTY) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn open_child(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

fn read_xattr(file: &impl std::os::fd::AsFd) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 8192];
    let size = rustix::fs::fgetxattr(file, XATTR, &mut buffer).ok()?;
    buffer.truncate(size);
    Some(buffer)
}

fn tag(stat: &fs::Metadata) -> String {
    format!("{:x}-{:x}-{:x}.{:09}", stat.ino(), stat.len(), stat.mtime(), stat.mtime_nsec())
}

fn marker_tag(metadata: &[u8]) -> String {
    format!("marker-{:08x}", crc32fast::hash(metadata))
}

/// The parent prefix of a key or prefix, and its last part.
fn split(key: &str) -> (&str, &str) {
    let bare = key.trim_end_matches('/');
    match bare.rfind('/') {
        Some(at) => (&bare[..=at], &bare[at + 1..]),
        None => ("", bare),
    }
}

fn is_absent(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let absent = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::XDEV, Errno::NXIO, Errno::NAMETOOLONG];
    Errno::from_io_error(error).is_some_and(|error| absent.contains(&error))
}

fn local(what: &'static str, path: &str, source: io::Error) -> StoreError {
    StoreError::Local { what, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_can_be_called_like_the_stage() {
        assert_eq!(crate::name::decode(STAGE), None);
    }

    #[tokio::test]
    async fn links_in_the_bucket_are_never_followed() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("outside"), b"secret").unwrap();
        let root = directory.path().join("bucket");
        let store = DirectoryStore::open(&root).unwrap();
        std::os::unix::fs::symlink("../outside", root.join("link")).unwrap();
        std::os::unix::fs::symlink("..", root.join("up")).unwrap();
        assert_eq!(store.head("link").await.unwrap(), None);
        assert_eq!(store.head("up/outside").await.unwrap(), None);
        assert_eq!(store.head("../outside").await.unwrap(), None);
        let listing = store.list(&ListRequest::default()).await.unwrap();
        assert!(listing.objects.is_empty() && listing.prefixes.is_empty(), "{listing:?}");
        let put = store.put("up/new", Content::Bytes("x".into()), &Metadata::new()).await;
        assert!(put.is_err() && !directory.path().join("new").exists());
    }
}
