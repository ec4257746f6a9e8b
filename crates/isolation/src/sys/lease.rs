//! Asks the kernel whether anybody has a file open for writing, by a lease that is given back at once.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `F_SETSIG` of the kernel's headers, which the `libc` crate does not have for every target.
const F_SETSIG: libc::c_int = 10;

/// Whether anybody, in any namespace, can write to this file now: by a descriptor, a shared mapping, or a write that is not
/// complete. Fails where the file system has no leases.
///
/// `file` must be a regular file that is open for reading only, and no other lease may be on this descriptor.
pub fn is_open_for_writing(file: BorrowedFd<'_>) -> io::Result<bool> {
    // Somebody may open the file while the lease is there. The kernel then sends a signal, and SIGIO would end this process.
    control(file, F_SETSIG, libc::SIGURG)?;
    match control(file, libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => control(file, libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        Err(error) => Err(error),
    }
}

fn control(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: both commands take a number, so the kernel touches no memory of this process.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_is_open_for_writing_as_long_as_somebody_could_write() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        assert!(is_open_for_writing(reader.as_fd()).unwrap());
        drop(writer);
        assert!(!is_open_for_writing(reader.as_fd()).unwrap());
        // The lease is gone, so nobody waits for it.
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        assert!(is_open_for_writing(reader.as_fd()).unwrap());
        drop(writer);
    }
}
