//! The writable layer of a sandbox, as its overlays need it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use super::{LayerSource, ProvisionError, Provisioner};

impl Provisioner {
    /// Creates the writable layer, or takes an existing one, and adds the directories that overlays need.
    pub(super) fn ensure_area(
        &self,
        name: &str,
        layer: LayerSource<'_>,
        on_host: bool,
    ) -> Result<PathBuf, ProvisionError> {
        let area = match layer {
            LayerSource::New => self.host.disk.create_area(name, None)?,
            LayerSource::Of(existing) => self.host.disk.area(existing)?,
            LayerSource::CopyOf(source) => self.host.disk.copy_area(source, name)?,
        };
        let path = area.path().to_owned();
        self.fill_area(&path, on_host).map_err(ProvisionError::Fill)?;
        Ok(path)
    }

    /// An existing layer may contain anything, including links to paths of the host, so links are never followed.
    fn fill_area(&self, area: &Path, on_host: bool) -> io::Result<()> {
        for part in ["root", "usr"] {
            make_directory(CWD, &area.join(part))?;
            make_work_directory(&area.join(format!("{part}.work")))?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, area.join("root"), flags, Mode::empty())?;
        make_directory(&root, Path::new("etc"))?;
        let etc = match openat(&root, "etc", flags, Mode::empty()) {
            // Its owner removed it or put something else there.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            other => other?,
        };
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match openat(&etc, "resolv.conf", new, Mode::from_raw_mode(0o644)) {
            Err(Errno::EXIST) => {}
            other => File::from(other?).write_all(self.host.network.resolvers().resolv_conf_text().as_bytes())?,
        }
        match &self.certificates {
            Some(certificates) if !on_host => write_certificates(&etc, certificates),
            _ => Ok(()),
        }
    }
}

/// Writes to a layer that may contain anything. Links are not followed, and existing files stay.
fn write_certificates(etc: &OwnedFd, certificates: &[u8]) -> io::Result<()> {
    make_directory(etc, Path::new("isopod"))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match openat(etc, "isopod", flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        other => other?,
    };
    let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match openat(&directory, "certificates.pem", new, Mode::from_raw_mode(0o644)) {
        Err(Errno::EXIST) => Ok(()),
        other => File::from(other?).write_all(certificates),
    }
}

/// Creates a directory, unless something already has that name.
fn make_directory(at: impl AsFd, path: &Path) -> io::Result<()> {
    match mkdirat(at, path, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}

/// Creates the overlay's work directory, always empty. A volatile overlay leaves a mark in it that prevents the next
/// mount. The data loss that the mark warns of cannot have happened, because a layer is synced before it is kept for a
/// later execution.
fn make_work_directory(path: &Path) -> io::Result<()> {
    match mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => {
            std::fs::remove_dir_all(path)?;
            Ok(mkdirat(CWD, path, Mode::from_raw_mode(0o755))?)
        }
        other => Ok(other?),
    }
}
