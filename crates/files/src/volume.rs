//! The content of volumes, by path. Links inside a volume are resolved as if the volume were the root directory.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;

use bytes::Bytes;
use isopod_store::clock::Timestamp;
use rustix::fs::{FileType, Gid, Mode, Uid};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::FileError;
use crate::offload::{FileSink, blocking};
use crate::path::InnerPath;
use crate::store::FileStore;
use crate::tree::{DIR_MODE, Links, NewFile, Tree};
use crate::walk::Found;
use crate::workspace::VOLUMES;

/// The files of one volume. Its methods block on the disk, so call them on a thread that may block.
#[derive(Debug)]
pub struct VolumeFiles {
    tree: Tree,
}

/// An entry as the API returns it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = VolumeEntryStat)]
pub struct EntryStat {
    name: String,
    r#type: EntryType,
    path: String,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    /// The target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    target: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = VolumeEntryType)]
enum EntryType {
    Unknown,
    File,
    Directory,
    Symlink,
}

/// The owner and mode to set. `None` leaves the present value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ownership {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: Option<u32>,
}

/// A file of a volume that is being written.
#[derive(Debug)]
pub struct VolumePut {
    path: InnerPath,
    file: File,
    new: NewFile,
    written: u64,
    limit: u64,
    files: Arc<VolumeFiles>,
    ownership: Ownership,
}

impl FileStore {
    /// Returns the files of a volume. Creates its directory if necessary.
    pub async fn volume(&self, id: &str) -> Result<VolumeFiles, FileError> {
        let top = self.top(Links::Refused).await?;
        let path = InnerPath::root().join(VOLUMES).join(id);
        let root = self.workspace.root().await?.join(VOLUMES).join(id);
        blocking(move || {
            top.ensure_dir(&path).map_err(FileError::doing("create", path.as_str()))?;
            let tree = Tree::open(&root, Links::Inside).map_err(FileError::doing("open", path.as_str()))?;
            Ok(VolumeFiles { tree })
        })
        .await
    }

    pub async fn remove_volume(&self, id: &str) -> Result<(), FileError> {
        let top = self.top(Links::Refused).await?;
        let path = InnerPath::root().join(VOLUMES).join(id);
        blocking(move || match top.remove_all(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(FileError::doing("remove", path.as_str())),
        })
        .await
    }

    /// The maximum size of one file of a volume.
    pub fn volume_file_limit(&self) -> u64 {
        self.limits.execution_quota
    }
}

impl VolumeFiles {
    pub fn stat(&self, path: &InnerPath) -> Result<EntryStat, FileError> {
        let stat = self.tree.stat(path).map_err(FileError::doing("stat", path.as_str()))?;
        let mut found = Found { path: path.clone(), stat, target: None };
        if found.kind() == FileType::Symlink {
            found.target = self.tree.read_link(path).ok();
        }
        Ok(entry_stat(&found))
    }

    pub fn list(&self, path: &InnerPath, depth: usize) -> Result<Vec<EntryStat>, FileError> {
        let found = self.tree.list(path, depth).map_err(FileError::doing("list", path.as_str()))?;
        Ok(found.iter().filter(|found| !found.is_unfinished()).map(entry_stat).collect())
    }

    /// Creates a directory. With `parents`, also creates missing parents, and the directory may exist already.
    pub fn make_dir(&self, path: &InnerPath, ownership: Ownership, parents: bool) -> Result<EntryStat, FileError> {
        let failed = |source| FileError::doing("create", path.as_str())(source);
        if parents {
            self.tree.ensure_dir(path).map_err(failed)?;
        } else if path.is_root() {
            return Err(FileError::Exists("/".to_owned()));
        } else {
            self.tree.make_dir(path, DIR_MODE).map_err(failed)?;
        }
        self.change(path, ownership)
    }

    pub fn change(&self, path: &InnerPath, ownership: Ownership) -> Result<EntryStat, FileError> {
        let failed = |source| FileError::doing("change", path.as_str())(source);
        if ownership.uid.is_some() || ownership.gid.is_some() {
            self.tree.set_owner(path, ownership.uid, ownership.gid).map_err(failed)?;
        }
        if let Some(mode) = ownership.mode {
            self.tree.set_mode(path, mode).map_err(failed)?;
        }
        self.stat(path)
    }

    pub fn open(&self, path: &InnerPath) -> Result<(File, u64), FileError> {
        let failed = |source| FileError::doing("open", path.as_str())(source);
        let file = self.tree.open_file(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        Ok((file, size))
    }

    /// Removes an entry. A directory is removed with its content.
    pub fn remove(&self, path: &InnerPath) -> Result<(), FileError> {
        let failed = |source| FileError::doing("remove", path.as_str())(source);
        self.tree.stat(path).map_err(failed)?;
        if path.is_root() {
            return Err(FileError::IsDirectory("/".to_owned()));
        }
        self.tree.remove_all(path).map_err(failed)
    }

    /// Starts to write a file. With `parents`, also creates missing directories above it.
    pub fn begin_put(
        self: Arc<Self>,
        path: InnerPath,
        ownership: Ownership,
        parents: bool,
        limit: u64,
    ) -> Result<VolumePut, FileError> {
        let Some((parent, _)) = path.split() else { return Err(FileError::IsDirectory("/".to_owned())) };
        if parents {
            self.tree.ensure_dir(&parent).map_err(FileError::doing("create", parent.as_str()))?;
        }
        let (new, file) = self.tree.begin_file(&path).map_err(FileError::doing("create", path.as_str()))?;
        Ok(VolumePut { path, file, new, written: 0, limit, files: self, ownership })
    }
}

impl FileSink for VolumePut {
    type Done = EntryStat;
    type Error = FileError;

    fn write(&mut self, piece: &Bytes) -> Result<(), FileError> {
        self.written = self.written.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if self.written > self.limit {
            return Err(FileError::TooLarge(self.limit));
        }
        self.file.write_all(piece).map_err(FileError::doing("write", self.path.as_str()))
    }

    fn finish(self) -> Result<EntryStat, FileError> {
        let Self { path, file, new, files, ownership, .. } = self;
        ownership.apply_to(&file).map_err(FileError::doing("change", path.as_str()))?;
        drop(file);
        new.finish().map_err(FileError::doing("rename", path.as_str()))?;
        files.stat(&path)
    }
}

impl Ownership {
    fn apply_to(self, file: &File) -> io::Result<()> {
        if self.uid.is_some() || self.gid.is_some() {
            rustix::fs::fchown(file, self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw))?;
        }
        match self.mode {
            Some(mode) => Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?),
            None => Ok(()),
        }
    }
}

fn entry_stat(found: &Found) -> EntryStat {
    let stat = &found.stat;
    let name = found.path.split().map_or("", |(_, name)| name).to_owned();
    let kind = match found.kind() {
        FileType::RegularFile => EntryType::File,
        FileType::Directory => EntryType::Directory,
        FileType::Symlink => EntryType::Symlink,
        _ => EntryType::Unknown,
    };
    EntryStat {
        name,
        r#type: kind,
        path: format!("/{}", found.path.as_str()),
        size: found.size(),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime: moment(stat.st_atime, stat.st_atime_nsec),
        mtime: moment(stat.st_mtime, stat.st_mtime_nsec),
        ctime: moment(stat.st_ctime, stat.st_ctime_nsec),
        target: found.target.clone(),
    }
}

fn moment(seconds: i64, nanos: impl TryInto<i64>) -> Timestamp {
    Timestamp(seconds.saturating_mul(1000).saturating_add(nanos.try_into().unwrap_or(0) / 1_000_000))
}
