//! One file or directory that the command sees instead of another.

use std::fs::metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use rustix::mount::mount_bind;

#[derive(Debug)]
pub(super) struct Cover {
    /// What is seen.
    pub(super) source: PathBuf,
    /// Where. A link there is followed.
    pub(super) target: PathBuf,
}

impl Cover {
    /// Mounts it, unless it is there. Whoever replaces the file outside takes the mount away.
    pub(super) fn ensure(&self) -> io::Result<()> {
        if self.is_in_place()? {
            return Ok(());
        }
        Ok(mount_bind(&self.source, &self.target)?)
    }

    fn is_in_place(&self) -> io::Result<bool> {
        let (source, target) = (metadata(&self.source)?, metadata(&self.target)?);
        Ok((source.dev(), source.ino()) == (target.dev(), target.ino()))
    }
}
