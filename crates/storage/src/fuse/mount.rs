//! Mounts and unmounts on this host. Inside a sandbox, other code does it, with the same options.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

/// Appears in `/proc/mounts` as the type `fuse.isopod`.
const TYPE: &str = "fuse.isopod";

/// Why a mount could not be created or removed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot open /dev/fuse")]
    Device(#[source] io::Error),
    #[error("cannot mount on {path}")]
    Mount { path: String, source: io::Error },
    #[error("cannot unmount {path}")]
    Unmount { path: String, source: io::Error },
}

/// Mounts on a directory and returns the descriptor to serve. Nothing can be read before it is served.
pub fn mount(path: &Path) -> Result<OwnedFd, MountError> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| MountError::Device(error.into()))?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let options = CString::new(options).expect("the options contain no NUL");
    // Programs in the workspace must not gain privileges on the host, and device nodes must not work.
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("isopod", path, TYPE, flags, options.as_c_str())
        .map_err(|error| MountError::Mount { path: path.display().to_string(), source: error.into() })?;
    Ok(device)
}

/// Unmounts a path, even if it is in use. It is not an error if nothing is mounted there.
pub fn unmount(path: &Path) -> Result<(), MountError> {
    match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(MountError::Unmount { path: path.display().to_string(), source: error.into() }),
    }
}
