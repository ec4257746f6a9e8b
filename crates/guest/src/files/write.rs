//! Opening a file to be filled by an upload.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid};
use serde::Serialize;

use crate::files::{failed, not_regular};
use crate::fs::write_metadata;
use crate::http::HttpError;
use crate::paths::{base_name, ensure_dirs};
use crate::users::User;

/// What a reply says about a file that was written.
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

/// Gives the file to the user. One that the user may write to, but that is somebody else's, stays theirs.
fn own(file: &File, user: &User) -> io::Result<()> {
    match rustix::fs::fchown(file, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid))) {
        Err(rustix::io::Errno::PERM) => Ok(()),
        other => Ok(other?),
    }
}

/// An empty file at `path` that belongs to the user, with the directories that lead to it.
pub(crate) fn create(path: &Path, user: &User, metadata: &BTreeMap<String, String>) -> Result<File, HttpError> {
    if let Some(parent) = path.parent() {
        ensure_dirs(parent, user.uid, user.gid)
            .map_err(|error| failed("error ensuring directories of", path, &error))?;
    }
    // Not truncated before it is known to be a regular file; a FIFO would block without NONBLOCK.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let file = match rustix::fs::open(path, flags, mode) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NXIO) => return Err(not_regular(path)),
        Err(error) => return Err(failed("error opening file", path, &error.into())),
    };
    let prepare = || -> io::Result<bool> {
        if !file.metadata()?.is_file() {
            return Ok(false);
        }
        file.set_len(0)?;
        own(&file, user)?;
        write_metadata(&file, metadata)?;
        Ok(true)
    };
    match prepare() {
        Ok(true) => Ok(file),
        Ok(false) => Err(not_regular(path)),
        Err(error) => Err(failed("error preparing file", path, &error)),
    }
}
