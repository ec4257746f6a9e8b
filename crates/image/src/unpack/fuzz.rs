//! Fuzz entry point for archives.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Bounds, Kind, decompress, unpack};

/// If the first byte is 0, the rest is unpacked as an archive. Otherwise it is a list of entries from which to make
/// one, see [`archive`]. Nothing may appear outside the directory into which it is unpacked.
pub fn layer(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let bytes = if *first == 0 { data.to_vec() } else { archive(data) };
    let kind = [Kind::Layer, Kind::Owned, Kind::Plain][usize::from(*first) % 3];
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("no temporary directory");
    let (inside, outside) = (scratch.path().join("inside"), scratch.path().join("outside"));
    fs::create_dir(&inside).and_then(|()| fs::create_dir(&outside)).expect("directories");
    fs::write(outside.join("file"), "untouched").expect("could not write a file");
    let before = fs::metadata(&outside).expect("could not read the metadata");
    let bounds = Bounds { bytes: 1 << 16, entries: 64 };
    if let Ok(stream) = decompress(&bytes[..])
        && let Ok(unpacked) = unpack(stream, &inside, kind, bounds)
    {
        assert!(unpacked.bytes <= bounds.bytes && unpacked.entries <= bounds.entries);
    }
    assert_untouched(scratch.path(), &outside, &before);
}

fn assert_untouched(scratch: &Path, outside: &Path, before: &fs::Metadata) {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).expect("unreadable").map(|entry| entry.expect("unreadable").file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(scratch), ["inside", "outside"]);
    assert_eq!(names(outside), ["file"]);
    assert_eq!(fs::read(outside.join("file")).expect("could not read the file"), b"untouched");
    let after = fs::metadata(outside).expect("could not read the metadata");
    assert_eq!((after.mode(), after.uid(), after.ctime_nsec()), (before.mode(), before.uid(), before.ctime_nsec()));
}

/// Makes an archive with correct checksums, so that the fuzzer gets past them. Each line is an entry. Its fields are
/// separated by tabs and copied into the header unchanged: kind, name, link, mode, owner, size (if empty, that of the
/// content), content.
fn archive(data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in data.split(|byte| *byte == b'\n').take(64) {
        let fields: Vec<&[u8]> = line.splitn(7, |byte| *byte == b'\t').collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or_default();
        let content = field(6);
        let size = if field(5).is_empty() { format!("{:011o}", content.len()).into_bytes() } else { field(5).to_vec() };
        let mut header = tar::Header::new_ustar();
        let block = header.as_mut_bytes();
        let places = [(1, 0, 100), (2, 157, 100), (3, 100, 8), (4, 108, 8)];
        for (index, start, length) in places {
            put(&mut block[start..start + length], field(index));
        }
        put(&mut block[116..124], field(4));
        put(&mut block[124..136], &size);
        block[156] = field(0).first().copied().unwrap_or(b'0');
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn put(place: &mut [u8], value: &[u8]) {
    place.fill(0);
    let length = value.len().min(place.len());
    place[..length].copy_from_slice(&value[..length]);
}
