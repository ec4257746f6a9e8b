//! Tar archives whose bytes depend only on what is in them.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// A file in a package, or an empty directory.
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) mode: u32,
    pub(super) contents: Vec<u8>,
}

impl Entry {
    pub(super) fn file(path: impl Into<String>, contents: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode: 0o644, contents: contents.into() }
    }

    /// A directory. Those that files are in need no entry.
    pub(super) fn directory(path: &str) -> Self {
        Self { path: format!("{path}/"), mode: 0o755, contents: Vec::new() }
    }

    pub(super) fn program(path: impl Into<String>, contents: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode: 0o755, contents: contents.into() }
    }
}

/// An archive of the files, owned by root, all with the same time.
pub(super) fn tar(entries: &[Entry], time: u64) -> Result<Vec<u8>, String> {
    write_tar(entries, time, Vec::new())
}

/// The same, compressed.
pub(super) fn tar_gz(entries: &[Entry], time: u64) -> Result<Vec<u8>, String> {
    let encoder = write_tar(entries, time, GzEncoder::new(Vec::new(), Compression::default()))?;
    encoder.finish().map_err(failed)
}

fn write_tar<W: Write>(entries: &[Entry], time: u64, out: W) -> Result<W, String> {
    let mut archive = tar::Builder::new(out);
    for directory in directories(entries) {
        let mut header = header(0o755, time);
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        archive.append_data(&mut header, directory, std::io::empty()).map_err(failed)?;
    }
    for entry in entries.iter().filter(|entry| !entry.path.ends_with('/')) {
        let mut header = header(entry.mode, time);
        header.set_size(entry.contents.len() as u64);
        archive.append_data(&mut header, &entry.path, entry.contents.as_slice()).map_err(failed)?;
    }
    archive.into_inner().map_err(failed)
}

fn failed(error: std::io::Error) -> String {
    format!("cannot write an archive: {error}")
}

pub(super) fn gzip(contents: &[u8]) -> Result<Vec<u8>, String> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(contents).and_then(|()| encoder.finish()).map_err(|error| format!("cannot compress: {error}"))
}

fn header(mode: u32, time: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_mtime(time);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// All directories above the files, each before what is in it.
fn directories(entries: &[Entry]) -> Vec<String> {
    let mut found = std::collections::BTreeSet::new();
    for entry in entries {
        let ends = entry.path.match_indices('/').map(|(end, _)| entry.path[..end].to_owned() + "/");
        found.extend(ends);
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn directories_come_before_their_files_and_the_bytes_repeat() {
        let entries =
            [Entry::directory("dev"), Entry::program("usr/bin/isopod", *b"x"), Entry::file("usr/share/doc/a", *b"y")];
        assert_eq!(directories(&entries), ["dev/", "usr/", "usr/bin/", "usr/share/", "usr/share/doc/"]);
        let packed = tar_gz(&entries, 7).unwrap();
        assert_eq!(packed, tar_gz(&entries, 7).unwrap());
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, tar(&entries, 7).unwrap());
        let mut archive = tar::Archive::new(unpacked.as_slice());
        let modes: Vec<(String, u32)> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap())
            })
            .collect();
        assert_eq!(modes.iter().filter(|(path, _)| path.starts_with("dev")).count(), 1, "{modes:?}");
        assert_eq!(modes.last().unwrap(), &("usr/share/doc/a".to_owned(), 0o644));
        assert!(modes.contains(&("usr/bin/isopod".to_owned(), 0o755)));
    }
}
