//! Copies the contents of an untrusted file, without its holes and within a quota.
//!
//! A file of a few bytes may claim a size of terabytes. Skipping its holes ensures that a copy takes no more space than
//! was written. Shared and compressed data counts in full.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom as StdSeekFrom};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::quota::{CHUNK, Quota};

/// Copies all of `from` into `to`, which is empty. Returns the number of bytes written.
///
/// # Errors
/// If the quota is used up, or a file cannot be read or written.
pub fn copy_contents(mut from: &File, mut to: &File, quota: &Quota) -> io::Result<u64> {
    let size = from.metadata()?.len();
    let (mut at, mut copied) = (0, 0);
    while at < size {
        let (start, end) = match next_data(from, at)? {
            Some((start, end)) => (start, end.min(size)),
            None => break,
        };
        from.seek(StdSeekFrom::Start(start))?;
        to.seek(StdSeekFrom::Start(start))?;
        at = start;
        while at < end {
            let wanted = (end - at).min(CHUNK);
            quota.take_bytes(wanted)?;
            let got = io::copy(&mut from.take(wanted), &mut to)?;
            copied += got;
            at += got;
            if got < wanted {
                // The file was truncated while it was read.
                to.set_len(at)?;
                return Ok(copied);
            }
        }
    }
    to.set_len(size)?;
    Ok(copied)
}

/// The first range of data at or after an offset.
fn next_data(file: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        other => other?,
    };
    match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Err(Errno::NXIO) => Ok(None),
        end => Ok(Some((start, end?))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::super::Bounds;
    use super::*;

    fn quota(bytes: u64) -> Quota {
        Quota::new(Bounds { bytes, ..Bounds::default() })
    }

    #[test]
    fn holes_stay_holes_and_data_is_where_it_was() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(1 << 40).unwrap();
        (&from).write_all(b"begin").unwrap();
        from.write_all_at(b"middle", 1 << 30).unwrap();
        let copied = copy_contents(&from, &to, &quota(1 << 20)).unwrap();
        let meta = to.metadata().unwrap();
        assert_eq!(meta.len(), 1 << 40);
        assert!(copied < 1 << 20 && meta.blocks() * 512 < 1 << 20, "{copied} {}", meta.blocks());
        let mut bytes = [0; 6];
        to.read_exact_at(&mut bytes, 1 << 30).unwrap();
        assert_eq!(&bytes, b"middle");
        to.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"begin\0");
    }

    #[test]
    fn a_copy_ends_where_its_quota_does() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        (&from).write_all(&vec![1; 3 << 20]).unwrap();
        assert!(copy_contents(&from, &to, &quota(2 << 20)).is_err());
        assert_eq!(to.metadata().unwrap().len(), 2 << 20);
        to.set_len(0).unwrap();
        assert_eq!(copy_contents(&from, &to, &quota(3 << 20)).unwrap(), 3 << 20);
    }

    #[test]
    fn an_empty_file_gives_an_empty_file() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        assert_eq!(copy_contents(&from, &to, &quota(0)).unwrap(), 0);
        assert_eq!(to.metadata().unwrap().len(), 0);
    }
}
