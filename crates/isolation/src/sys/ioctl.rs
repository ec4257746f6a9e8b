//! Request numbers and typed calls of ioctl.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The request number of an ioctl whose argument the kernel only reads.
pub(super) const fn ioc_write<T>(kind: u8, number: u8) -> libc::Ioctl {
    ioc(1, kind, number, size_of::<T>())
}

/// The request number of an ioctl whose argument the kernel only writes.
pub(super) const fn ioc_read<T>(kind: u8, number: u8) -> libc::Ioctl {
    ioc(2, kind, number, size_of::<T>())
}

/// The request number of an ioctl whose argument goes both ways.
pub(super) const fn ioc_both<T>(kind: u8, number: u8) -> libc::Ioctl {
    ioc(3, kind, number, size_of::<T>())
}

/// The layout that x86 and arm share: direction, size, kind, number.
pub(super) const fn ioc(direction: u32, kind: u8, number: u8, size: usize) -> libc::Ioctl {
    assert!(size < 1 << 14, "an ioctl number has 14 bits for the size of its argument");
    (direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number as u32) as libc::Ioctl
}

/// Calls an ioctl with a structure as its argument.
///
/// # Safety
/// `request` must be one that reads and writes exactly a `T`, and every bit pattern must be a valid `T`. Addresses
/// inside `T` must stay valid for the call.
pub(super) unsafe fn ioctl_with<T>(fd: BorrowedFd<'_>, request: libc::Ioctl, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the pointer comes from a live exclusive reference; the caller vouches that the request fits `T`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Calls an ioctl whose argument is nothing or a plain number.
///
/// # Safety
/// `request` must not treat its argument as an address.
pub(super) unsafe fn ioctl_number(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    argument: libc::c_ulong,
) -> io::Result<i32> {
    // SAFETY: the caller vouches that the kernel takes the argument as a number, so no memory is touched.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
