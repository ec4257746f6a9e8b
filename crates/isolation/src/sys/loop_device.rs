//! Loop devices: a file as a block device. Attached with autoclear, so the last close (or unmount) frees it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use super::ioctl::{ioctl_number, ioctl_with};

const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;

const FLAG_AUTOCLEAR: u32 = 4;
const FLAG_DIRECT_IO: u32 = 16;

/// An open loop device. It stays attached at least as long as this value lives.
#[derive(Debug)]
pub struct LoopDevice {
    file: File,
    number: u32,
}

/// The file behind a loop device, as `stat` identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingFile {
    pub device: u64,
    pub inode: u64,
}

#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_kind: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

impl LoopDevice {
    /// Attaches `image` to a free device. Uses direct I/O if the file system below allows it, so that pages are not
    /// cached twice.
    pub fn attach(image: BorrowedFd<'_>) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        // Another process may take the free device first. Then try again after EBUSY.
        for _ in 0..64 {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument and answers with a number.
            let number = unsafe { ioctl_number(control.as_fd(), LOOP_CTL_GET_FREE, 0) }?;
            let device = Self::open_for(number.unsigned_abs(), true)?;
            match device.configure_best(image) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
                other => return other.map(|()| device),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Opens `/dev/loop<number>` for reading. Does not attach it, but keeps an attached one attached.
    pub fn open(number: u32) -> io::Result<Self> {
        Self::open_for(number, false)
    }

    /// A device that is opened only for reading would be attached read-only.
    fn open_for(number: u32, writing: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(writing).open(format!("/dev/loop{number}"))?;
        Ok(Self { file, number })
    }

    /// The name of the device node.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }

    /// Returns the file behind it, or `None` if the device is free.
    pub fn backing_file(&self) -> io::Result<Option<BackingFile>> {
        let mut info = LoopInfo::with_flags(0);
        // SAFETY: LOOP_GET_STATUS64 writes a loop_info64, which `LoopInfo` mirrors.
        match unsafe { ioctl_with(self.file.as_fd(), LOOP_GET_STATUS64, &mut info) } {
            Ok(_) => Ok(Some(BackingFile { device: info.device, inode: info.inode })),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Updates the device to the current size of the file.
    pub fn refresh_size(&self) -> io::Result<()> {
        // SAFETY: LOOP_SET_CAPACITY takes no argument.
        unsafe { ioctl_number(self.file.as_fd(), LOOP_SET_CAPACITY, 0) }.map(drop)
    }

    /// Detaches the device. While others hold it open, the kernel waits for the last of them.
    pub fn detach(self) -> io::Result<()> {
        // SAFETY: LOOP_CLR_FD takes no argument.
        match unsafe { ioctl_number(self.file.as_fd(), LOOP_CLR_FD, 0) } {
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => Err(error),
            _ => Ok(()),
        }
    }

    fn configure_best(&self, image: BorrowedFd<'_>) -> io::Result<()> {
        match self.configure(image, 4096, FLAG_AUTOCLEAR | FLAG_DIRECT_IO) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.configure(image, 0, FLAG_AUTOCLEAR),
            other => other,
        }
    }

    fn configure(&self, image: BorrowedFd<'_>, block_size: u32, flags: u32) -> io::Result<()> {
        let fd = image.as_raw_fd().unsigned_abs();
        let mut config = LoopConfig { fd, block_size, info: LoopInfo::with_flags(flags), reserved: [0; 8] };
        // SAFETY: LOOP_CONFIGURE reads a loop_config, which `LoopConfig` mirrors; `image` is open during the call and
        // the kernel takes its own reference to the file.
        unsafe { ioctl_with(self.file.as_fd(), LOOP_CONFIGURE, &mut config) }.map(drop)
    }
}

impl LoopInfo {
    fn with_flags(flags: u32) -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_kind: 0,
            encrypt_key_size: 0,
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel_headers() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
