//! Copies the content of one file: shared where the file system can, else without its holes.

use std::fs::File;
use std::io::{self, Read, Seek};

use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use rustix::io::Errno;

/// Shares the blocks of the source. Returns false if that is not possible here.
pub(super) fn clone(source: &File, target: &File) -> bool {
    ioctl_ficlone(target, source).is_ok()
}

/// Copies the first `size` bytes, and counts in `copied` what is not a hole. Fails with FileTooLarge if that is more than
/// `most`, because the file may grow meanwhile.
pub(super) fn copy(source: &File, target: &File, size: u64, most: u64, copied: &mut u64) -> io::Result<()> {
    target.set_len(size)?;
    let mut at = 0;
    let mut left = most;
    while at < size {
        let start = match seek(source, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        at = seek(source, SeekFrom::Hole(start))?.min(size);
        let length = at.saturating_sub(start);
        if length > left {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let (mut from, mut to) = (source, target);
        from.seek(io::SeekFrom::Start(start))?;
        to.seek(io::SeekFrom::Start(start))?;
        // This is copy_file_range, where that works.
        let done = io::copy(&mut from.take(length), &mut to)?;
        *copied += done;
        left -= done;
    }
    Ok(())
}
