//! Entry points for the fuzz targets in `/fuzz`: the parsers of client input. Each function takes any bytes and panics
//! if a guarantee of its parser does not hold.

use std::path::Path;
use std::time::SystemTime;

use isopod_api::query;
use isopod_otlp::TraceParent;
use isopod_outbound::Target;
use isopod_store::clock::Timestamp;
use isopod_store::{RunId, is_workspace_id};

use crate::templates::{Reference, parse_tag, unpack_context};
use isopod_files::{InnerPath, Key};

pub use crate::edge::fuzz::{edge_route, edge_stream};
pub use crate::lifecycle::fuzz::guest_pages;
pub use crate::listener::fuzz::http_framing;
pub use isopod_identity::fuzz::jwt;

/// Parses a text with all parsers. A valid result names nothing outside and survives a round trip.
pub fn api_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    read_paths(&text);
    if let Ok(reference) = Reference::parse(&text) {
        assert!(!reference.name.contains(['/', ':']) && !reference.tag().contains(['/', ':']), "{reference:?}");
    }
    let _ = (parse_tag(&text), text.parse::<RunId>(), is_workspace_id(&text), query::metadata_filter(&text));
    if let Some(time) = Timestamp::parse_rfc3339(&text) {
        let _ = SystemTime::from(time);
        assert_eq!(Timestamp::parse_rfc3339(&time.to_rfc3339()), Some(time), "{text}");
    }
    let _ = TraceParent::parse(&text);
    if let Ok(target) = Target::parse(&text) {
        assert!(target.path.starts_with(['/', '?', '*']), "{target:?}");
        assert!(!target.host.contains('@') && !target.authority.contains('@'), "{target:?}");
    }
}

fn read_paths(text: &str) {
    let below = |path: &str| !Path::new("/top").join(path).components().any(|part| part.as_os_str() == "..");
    if let Ok(path) = InnerPath::parse(text) {
        assert!(below(path.as_str()) && !path.as_str().starts_with('/'), "{path:?}");
        assert_eq!(InnerPath::parse(path.as_str()).ok(), Some(path));
    }
    if let Ok(key) = Key::parse(text) {
        assert_eq!(Key::parse(key.as_str()).ok(), Some(key));
    }
}

/// Unpacks the context of a build: entries as lines of kind, name and target or content. Nothing appears outside the
/// target directory.
pub fn build_context(data: &[u8]) {
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("can create a directory");
    let at = |name: &str| scratch.path().join(name);
    std::fs::create_dir(at("outside")).expect("can create a directory");
    // Gives links a constant name through which they can lead there.
    std::os::unix::fs::symlink(at("outside"), at("way")).expect("can create a link");
    std::fs::write(at("context.tar"), context(data)).expect("can write a file");
    let unpacked = unpack_context(&at("context.tar"), &at("into"), 1 << 16, &|_| Ok(()));
    assert_eq!(unpacked.is_ok(), at("into").exists());
    assert_eq!(
        std::fs::read_dir(at("outside")).expect("the directory exists").count(),
        0,
        "something was written outside"
    );
    let names = std::fs::read_dir(scratch.path()).expect("the directory exists").count();
    assert_eq!(names, 3 + usize::from(unpacked.is_ok()), "something was written beside it");
}

fn context(data: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    for line in data.split(|byte| *byte == b'\n').take(64) {
        let mut fields = line.splitn(3, |byte| *byte == b'\t');
        let mut field = || fields.next().unwrap_or_default();
        let (kind, name, rest) = (field().first().copied().unwrap_or(b'0'), field(), field());
        let mut header = tar::Header::new_ustar();
        let old = header.as_old_mut();
        let put = |place: &mut [u8], value: &[u8]| {
            let length = value.len().min(place.len());
            place[..length].copy_from_slice(&value[..length]);
        };
        put(&mut old.name, name);
        old.linkflag = [kind];
        let content = if kind == b'0' { rest } else { &[] };
        if kind == b'1' || kind == b'2' {
            put(&mut old.linkname, rest);
        }
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}
