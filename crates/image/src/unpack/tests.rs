//! Archives that try to leave the directory into which they are unpacked.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::*;

/// An entry: kind, name, link target, content.
type Wanted<'a> = (EntryType, &'a str, &'a str, &'a str);

fn archive(entries: &[Wanted<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, target, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(if *kind == EntryType::Directory { 0o755 } else { 0o4644 });
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(1000);
        // Written by hand, because the library refuses the names that matter here.
        let raw = header.as_mut_bytes();
        raw[..name.len()].copy_from_slice(name.as_bytes());
        raw[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn run(entries: &[Wanted<'_>], kind: Kind) -> (tempfile::TempDir, Result<Unpacked, UnpackError>) {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::create_dir(scratch.path().join("in")).unwrap();
    std::fs::write(scratch.path().join("secret"), "untouched").unwrap();
    let bounds = Bounds { bytes: 1000, entries: 20 };
    let result = unpack(&archive(entries)[..], &scratch.path().join("in"), kind, bounds);
    assert_eq!(std::fs::read_to_string(scratch.path().join("secret")).unwrap(), "untouched");
    (scratch, result)
}

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;

#[test]
fn names_that_lead_out_are_refused() {
    for name in ["../secret", "a/../../secret", ".."] {
        let (_, result) = run(&[(FILE, name, "", "x")], Kind::Layer);
        assert!(matches!(result, Err(UnpackError::Path(_))), "{name}: {result:?}");
    }
    let (_, result) = run(&[(EntryType::Link, "x", "../secret", "")], Kind::Layer);
    assert!(matches!(result, Err(UnpackError::Path(_))), "{result:?}");
}

#[test]
fn an_absolute_name_is_one_inside() {
    let (scratch, result) = run(&[(FILE, "/secret", "", "x")], Kind::Layer);
    assert_eq!(result.unwrap().entries, 1);
    assert_eq!(std::fs::read_to_string(scratch.path().join("in/secret")).unwrap(), "x");
}

#[test]
fn a_link_and_then_a_file_through_it_stays_inside() {
    for target in ["..", "/", "../..", "/proc/self/root", "/proc/self/cwd/.."] {
        let (scratch, _) = run(&[(LINK, "d", target, ""), (FILE, "d/secret", "", "x")], Kind::Layer);
        assert!(!scratch.path().join("in/../x").exists(), "{target}");
    }
    let (scratch, result) = run(&[(LINK, "secret", "../secret", ""), (FILE, "secret", "", "x")], Kind::Plain);
    result.unwrap();
    assert!(std::fs::symlink_metadata(scratch.path().join("in/secret")).unwrap().is_file());
}

#[test]
fn a_hard_link_to_a_link_does_not_follow_it() {
    let entries = [(LINK, "l", "/etc/passwd", ""), (EntryType::Link, "h", "l", ""), (FILE, "h", "", "x")];
    let (scratch, result) = run(&entries, Kind::Layer);
    result.unwrap();
    assert_eq!(std::fs::read_to_string(scratch.path().join("in/h")).unwrap(), "x");
    assert!(std::fs::symlink_metadata(scratch.path().join("in/l")).unwrap().is_symlink());
}

#[test]
fn devices_are_left_out_and_bombs_end() {
    let (scratch, result) = run(&[(EntryType::Char, "null", "", ""), (EntryType::Block, "b", "", "")], Kind::Layer);
    assert_eq!(result.unwrap().left_out, 2);
    assert!(!scratch.path().join("in/null").exists());
    let large = "x".repeat(1001);
    assert!(matches!(run(&[(FILE, "f", "", &large)], Kind::Layer).1, Err(UnpackError::Quota(_))));
    let many = vec![(FILE, "f", "", ""); 21];
    assert!(matches!(run(&many, Kind::Layer).1, Err(UnpackError::Quota(_))));
}

#[test]
fn a_layer_hides_what_it_removes() {
    let entries = [
        (EntryType::Directory, "d", "", ""),
        (FILE, "d/.wh..wh..opq", "", ""),
        (FILE, ".wh.gone", "", ""),
        (FILE, ".wh...", "", ""),
        (FILE, ".wh..wh.plnk", "", ""),
    ];
    let (scratch, result) = run(&entries, Kind::Layer);
    result.unwrap();
    let gone = std::fs::symlink_metadata(scratch.path().join("in/gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    let mut value = [0; 4];
    assert_eq!(rustix::fs::getxattr(scratch.path().join("in/d"), OPAQUE_MARK, &mut value[..]).unwrap(), 1);
    let left: Vec<_> = std::fs::read_dir(scratch.path().join("in")).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "{left:?}");
    // In uploaded files, it is a name like any other.
    let (scratch, _) = run(&[(FILE, ".wh.gone", "", "x")], Kind::Plain);
    assert!(scratch.path().join("in/.wh.gone").exists());
}

#[test]
fn owners_modes_and_times_are_those_of_the_archive() {
    let (scratch, result) = run(&[(EntryType::Directory, "d", "", ""), (FILE, "d/f", "", "x")], Kind::Layer);
    result.unwrap();
    let file = std::fs::metadata(scratch.path().join("in/d/f")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777, file.mtime()), (7, 8, 0o4644, 1000));
    assert_eq!(std::fs::metadata(scratch.path().join("in/d")).unwrap().mtime(), 1000);
    let (scratch, _) = run(&[(FILE, "f", "", "x")], Kind::Plain);
    assert_eq!(std::fs::metadata(scratch.path().join("in/f")).unwrap().uid(), 0);
}

#[test]
fn a_file_takes_the_place_of_a_directory_and_the_other_way_round() {
    let entries = [
        (EntryType::Directory, "a", "", ""),
        (FILE, "a/b/c", "", "x"),
        (FILE, "a", "", "y"),
        (EntryType::Directory, "a", "", ""),
    ];
    let (scratch, result) = run(&entries, Kind::Layer);
    result.unwrap();
    assert!(scratch.path().join("in/a").is_dir());
}

/// A header that declares `size` bytes of content, and these bytes.
fn claim(kind: EntryType, size: u64) -> impl Read {
    let mut header = tar::Header::new_gnu();
    header.set_path("x").unwrap();
    header.set_entry_type(kind);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header.set_cksum();
    io::Cursor::new(header.as_bytes().to_vec()).chain(io::repeat(b'a').take(size))
}

#[test]
fn headers_without_end_are_refused() {
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let scratch = tempfile::tempdir().unwrap();
        let stream = claim(kind, 64 << 20).chain(io::Cursor::new(archive(&[(FILE, "f", "", "hello")])));
        let refused = unpack(stream, scratch.path(), Kind::Layer, Bounds::default()).unwrap_err();
        let UnpackError::Archive(why) = refused else { panic!("{refused}") };
        assert!(why.to_string().contains("headers"), "{kind:?}: {why}");
    }
}

#[test]
fn a_name_that_no_file_can_have_is_told_by_its_length() {
    let scratch = tempfile::tempdir().unwrap();
    let stream = claim(EntryType::GNULongName, 1 << 20).chain(io::Cursor::new(archive(&[(FILE, "f", "", "hello")])));
    let refused = unpack(stream, scratch.path(), Kind::Layer, Bounds::default());
    assert!(matches!(refused, Err(UnpackError::LongName(1_048_576))));
}

#[test]
fn what_is_left_out_counts_as_well() {
    let scratch = tempfile::tempdir().unwrap();
    let bounds = Bounds { bytes: 1000, entries: 10 };
    let refused = unpack(claim(EntryType::Char, 1 << 20), scratch.path(), Kind::Layer, bounds);
    assert!(matches!(refused, Err(UnpackError::Quota(_))), "{refused:?}");
}

#[test]
fn damage_is_told() {
    let scratch = tempfile::tempdir().unwrap();
    let mut bytes = archive(&[(FILE, "f", "", "hello")]);
    bytes.truncate(514);
    assert!(unpack(&bytes[..], scratch.path(), Kind::Plain, Bounds::default()).is_err());
    assert!(unpack(&[1_u8; 1024][..], scratch.path(), Kind::Plain, Bounds::default()).is_err());
}

#[test]
fn compression_is_told_by_the_first_bytes() {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"hello").unwrap();
    let zstd = zstd::stream::encode_all(&b"hello"[..], 1).unwrap();
    for bytes in [gzip.finish().unwrap(), zstd, b"hello".to_vec()] {
        let mut text = String::new();
        decompress(&bytes[..]).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }
    assert_eq!(decompress(&b""[..]).unwrap().read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn links_do_not_lead_deeper_than_names_may() {
    let down = "a/".repeat(48);
    let mut entries = vec![(EntryType::Directory, down.clone(), String::new())];
    for round in 0..4 {
        let end = entries.last().unwrap().1.clone();
        entries.push((LINK, format!("{round}"), end));
        entries.push((EntryType::Directory, format!("{round}/{down}"), String::new()));
    }
    let wanted: Vec<Wanted<'_>> = entries.iter().map(|(kind, name, target)| (*kind, &**name, &**target, "")).collect();
    assert_eq!(run(&wanted[..7], Kind::Layer).1.unwrap().entries, 7);
    let refused = run(&wanted, Kind::Layer).1.unwrap_err();
    assert!(matches!(&refused, UnpackError::Entry { source, .. } if source.raw_os_error() == Some(36)), "{refused:?}");
}

#[test]
fn archives_that_share_a_quota_share_what_it_holds() {
    let scratch = tempfile::tempdir().unwrap();
    let quota = Quota::new(Bounds { bytes: 8, entries: 10 });
    let small = archive(&[(FILE, "f", "", "12345")]);
    unpack_within(&small[..], scratch.path(), Kind::Layer, &quota).unwrap();
    let refused = unpack_within(&small[..], scratch.path(), Kind::Layer, &quota).unwrap_err();
    assert!(matches!(refused, UnpackError::Quota(QuotaError::Bytes(8))), "{refused}");
    let stopped = Quota::new(Bounds::default()).stopped_by(|| Some("enough".to_owned()));
    let refused = unpack_within(&small[..], scratch.path(), Kind::Layer, &stopped).unwrap_err();
    assert_eq!(refused.to_string(), "could not unpack the archive: enough");
}
