//! The guest program, embedded, as an immutable file.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};

static PROGRAM: &[u8] = include_bytes!(env!("ISOPOD_GUEST_PATH"));

/// The static program that becomes PID 1 in every sandbox.
pub fn guest_program_bytes() -> &'static [u8] {
    PROGRAM
}

/// The program in memory, shared by all sandboxes. It is sealed, so that root in a sandbox cannot write to
/// `/proc/1/exe`.
pub(crate) fn sealed() -> io::Result<OwnedFd> {
    let fd = memfd_create("isopod-guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(PROGRAM)?;
    fchmod(&file, Mode::from_raw_mode(0o555))?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    // Reopened for reading, because the kernel does not execute a file that is open for writing.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    Ok(File::open(path)?.into())
}
