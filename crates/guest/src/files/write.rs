//! Opens the files that uploads write to.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid};
use serde::Serialize;

use crate::files::{failed, not_regular};
use crate::fs::write_metadata;
use crate::http::HttpError;
use crate::paths::{base_name, ensure_dirs};
use crate::users::User;

/// Describes a written file in a reply.
#[derive(Debug, Serialize)]
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) r#type: &'static str,
    pub(crate) path: PathBuf,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Written {
    pub(crate) fn new(path: PathBuf, metadata: BTreeMap<String, String>) -> Self {
        Self { name: base_name(&path), r#type: "file", path, metadata }
    }
}

/// Makes the user the file's owner. Where a file system does not let root change owners, the file keeps its own.
fn own(file: &File, user: &User) -> io::Result<()> {
    match rustix::fs::fchown(file, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid))) {
        Err(rustix::io::Errno::PERM) => Ok(()),
        other => Ok(other?),
    }
}

/// No truncation: first the guest checks that it is a regular file. NONBLOCK, because a FIFO would block otherwise.
const FLAGS: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
const MODE: Mode = Mode::from_raw_mode(0o666);

/// Opens `path` as an empty file of the user; creates it and its parent directories if they are missing.
pub(crate) fn create(path: &Path, user: &User, metadata: &BTreeMap<String, String>) -> Result<File, HttpError> {
    ensure_parents(path, user)?;
    match open_or_create(path) {
        Ok(fd) => prepare(fd.into(), Before::MayHaveContents, path, user, metadata),
        Err(rustix::io::Errno::NXIO) => Err(not_regular(path)),
        Err(error) => Err(failed("error opening file", path, &error.into())),
    }
}

/// Creates the file only if it is missing: many hosts (`fs.protected_regular`) let nobody open another user's file in a
/// directory like `/tmp` with the flag that may create it.
fn open_or_create(path: &Path) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::open(path, FLAGS.difference(OFlags::CREATE), MODE) {
        Err(rustix::io::Errno::NOENT) => rustix::fs::open(path, FLAGS, MODE),
        opened => opened,
    }
}

/// Like [`create`], but only if nothing exists at `path`. `None` if something does; it is not touched.
pub(crate) fn create_new(
    path: &Path,
    user: &User,
    metadata: &BTreeMap<String, String>,
) -> Result<Option<File>, HttpError> {
    ensure_parents(path, user)?;
    match rustix::fs::open(path, FLAGS | OFlags::EXCL, MODE) {
        Ok(fd) => prepare(fd.into(), Before::New, path, user, metadata).map(Some).inspect_err(|_| {
            // The file is new and empty.
            let _ = std::fs::remove_file(path);
        }),
        Err(rustix::io::Errno::EXIST) => match path.metadata() {
            // Fails with the reason.
            Ok(meta) if !meta.is_file() => create(path, user, metadata).map(Some),
            _ => Ok(None),
        },
        Err(error) => Err(failed("error opening file", path, &error.into())),
    }
}

fn ensure_parents(path: &Path, user: &User) -> Result<(), HttpError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    ensure_dirs(parent, user.uid, user.gid).map_err(|error| failed("error ensuring directories of", path, &error))
}

/// What a file was before it was opened.
#[derive(PartialEq)]
enum Before {
    /// Just created, so empty. It is not truncated: watchers would see a write that nobody made.
    New,
    MayHaveContents,
}

/// The owner and the metadata come first, so that watchers see one change of attributes and then the writes.
fn prepare(
    file: File,
    before: Before,
    path: &Path,
    user: &User,
    metadata: &BTreeMap<String, String>,
) -> Result<File, HttpError> {
    let prepare = || -> io::Result<bool> {
        if !file.metadata()?.is_file() {
            return Ok(false);
        }
        own(&file, user)?;
        write_metadata(&file, metadata)?;
        if before == Before::MayHaveContents {
            file.set_len(0)?;
        }
        Ok(true)
    };
    match prepare() {
        Ok(true) => Ok(file),
        Ok(false) => Err(not_regular(path)),
        Err(error) => Err(failed("error preparing file", path, &error)),
    }
}
