//! Copies the content of one file: shared where the file system can, else without its holes.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::time::Instant;

use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use rustix::io::Errno;

/// How much is copied before somebody looks at the time.
const PIECE: u64 = 64 << 20;

/// Shares the blocks of the source. Returns false if that is not possible here.
pub(super) fn clone(source: &File, target: &File) -> bool {
    ioctl_ficlone(target, source).is_ok()
}

/// Copies the first `size` bytes, and counts in `copied` what is not a hole. Fails with FileTooLarge if that is more than
/// `most`, because the file may grow meanwhile, and with TimedOut if it takes longer than `until`.
pub(super) fn copy(
    source: &File,
    target: &File,
    size: u64,
    most: u64,
    until: Option<Instant>,
    copied: &mut u64,
) -> io::Result<()> {
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
        copy_range(source, target, start..at, until, copied)?;
        left -= length;
    }
    Ok(())
}

fn copy_range(
    source: &File,
    target: &File,
    range: Range<u64>,
    until: Option<Instant>,
    copied: &mut u64,
) -> io::Result<()> {
    let (mut from, mut to) = (source, target);
    from.seek(io::SeekFrom::Start(range.start))?;
    to.seek(io::SeekFrom::Start(range.start))?;
    let mut left = range.end.saturating_sub(range.start);
    while left > 0 {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // This is copy_file_range, where that works.
        let done = io::copy(&mut from.take(left.min(PIECE)), &mut to)?;
        if done == 0 {
            return Ok(());
        }
        *copied += done;
        left -= done;
    }
    Ok(())
}
