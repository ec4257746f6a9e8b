//! Counts the blocks of a directory's files, where the file system does not count them.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use isopod_wire::Bytes;

/// What a directory takes on the disk, with everything in it. A file with several names counts once.
///
/// A program in the directory may have made it deeper than any path can be, which `du` copes with.
pub(super) fn used_by(directory: &Path) -> io::Result<Bytes> {
    let counted = Command::new("du")
        .args(["--summarize", "--one-file-system", "--block-size=1", "--"])
        .arg(directory)
        .stdin(Stdio::null())
        .output()?;
    if !counted.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&counted.stderr).trim().to_owned()));
    }
    let text = String::from_utf8_lossy(&counted.stdout);
    let used = text.split_ascii_whitespace().next().and_then(|number| number.parse().ok());
    used.map(Bytes).ok_or_else(|| io::Error::other(format!("du printed {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_count_and_not_lengths_and_each_file_once() {
        let place = tempfile::tempdir().unwrap();
        let empty = used_by(place.path()).unwrap().0;
        let sparse = std::fs::File::create(place.path().join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        std::fs::write(place.path().join("a"), vec![7; 1 << 20]).unwrap();
        std::fs::hard_link(place.path().join("a"), place.path().join("b")).unwrap();
        rustix::fs::fsync(std::fs::File::open(place.path().join("a")).unwrap()).unwrap();
        let grown = used_by(place.path()).unwrap().0 - empty;
        assert!((1 << 20..2 << 20).contains(&grown), "{grown}");
        assert!(used_by(&place.path().join("missing")).is_err());
    }
}
