//! Incomplete uploads, tested with the real binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::{Guest, wait_until};
use flate2::Compression;

const MUCH: usize = 17 << 20;

/// A request whose rest never arrives.
type Begun = std::os::unix::net::UnixStream;

/// How the end of a body is marked.
#[derive(Clone, Copy, Debug)]
enum Body {
    Sized,
    Chunked,
    Gzip,
    Form,
}

const BODIES: [Body; 4] = [Body::Sized, Body::Chunked, Body::Gzip, Body::Form];

fn begin(guest: &Guest, path: &Path, body: Body, data: &[u8]) -> Begun {
    let mut stream = guest.connect();
    let target = format!("POST /files?path={} HTTP/1.1\r\nHost: x\r\n", path.display());
    let octets = "Content-Type: application/octet-stream\r\n";
    let total = data.len() + 1000;
    let (head, sent) = match body {
        Body::Sized => (format!("{target}{octets}Content-Length: {total}\r\n\r\n"), data.to_vec()),
        Body::Chunked => {
            let chunk = [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat();
            (format!("{target}{octets}Transfer-Encoding: chunked\r\n\r\n"), chunk)
        }
        Body::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Compression::none());
            gzip.write_all(data).unwrap();
            gzip.flush().unwrap();
            let packed = gzip.get_ref().clone();
            let total = packed.len() + 1000;
            (format!("{target}{octets}Content-Encoding: gzip\r\nContent-Length: {total}\r\n\r\n"), packed)
        }
        Body::Form => {
            let part = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n";
            let form = "Content-Type: multipart/form-data; boundary=b\r\n";
            (format!("{target}{form}Content-Length: {}\r\n\r\n", total + 1000), [part, data].concat())
        }
    };
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&sent).unwrap();
    stream
}

fn uploads(guest: &Guest) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", guest.pid())).unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("comm"));
    tasks.filter_map(|task| name(task).ok()).filter(|name| name.trim() == "upload").count()
}

/// Disconnects in the middle of an upload, and waits until the guest has handled that.
fn break_off(guest: &Guest, begun: Begun) {
    wait_until(|| uploads(guest) > 0);
    drop(begun);
    wait_until(|| uploads(guest) == 0);
}

#[test]
fn an_incomplete_new_file_is_removed() {
    let guest = Guest::new();
    for body in BODIES {
        for length in [1, 1000, MUCH] {
            let path = guest.path("some/new");
            let begun = begin(&guest, &path, body, &vec![b'x'; length]);
            wait_until(|| path.exists());
            break_off(&guest, begun);
            assert!(!path.exists(), "{body:?} {length}");
        }
    }
}

#[test]
fn an_existing_file_is_untouched_until_the_new_one_is_complete() {
    let guest = Guest::new();
    let path = guest.path("old");
    std::fs::write(&path, "as it was").unwrap();
    let before = path.metadata().unwrap();
    for body in BODIES {
        break_off(&guest, begin(&guest, &path, body, &vec![b'x'; 1 << 20]));
        let after = path.metadata().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "as it was", "{body:?}");
        assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), before.mtime_nsec()), "{body:?}");
    }
}

#[test]
fn a_complete_file_is_written_in_place_and_its_hard_links_see_it() {
    let guest = Guest::new();
    let (path, other, link) = (guest.path("old"), guest.path("other"), guest.path("link"));
    std::fs::write(&path, "as it was, and longer").unwrap();
    std::fs::hard_link(&path, &other).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let inode = path.metadata().unwrap().ino();
    let octets = [("Content-Type", "application/octet-stream")];
    for (target, data) in [(&path, vec![b'a'; 5]), (&link, vec![b'b'; MUCH]), (&other, Vec::new())] {
        let reply = guest.request("POST", &format!("/files?path={}", target.display()), &octets, &data);
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(path.metadata().unwrap().ino(), inode);
        assert!(std::fs::read(&path).unwrap() == data && std::fs::read(&other).unwrap() == data);
    }
    assert!(link.is_symlink());
}

/// E2B's daemon does this with every upload.
#[test]
fn more_than_16_mib_are_written_to_an_existing_file_as_they_arrive() {
    let guest = Guest::new();
    let path = guest.path("old");
    for body in BODIES {
        std::fs::write(&path, "as it was").unwrap();
        let begun = begin(&guest, &path, body, &vec![b'x'; MUCH]);
        wait_until(|| path.metadata().unwrap().len() > 16 << 20);
        break_off(&guest, begun);
        let left = std::fs::read(&path).unwrap();
        assert!(left.len() <= MUCH && left.iter().all(|byte| *byte == b'x'), "{body:?} {}", left.len());
    }
}

#[test]
fn complete_parts_stay_when_a_later_one_is_incomplete() {
    let guest = Guest::new();
    let (first, second) = (guest.path("first"), guest.path("second"));
    let part = |path: &Path| {
        format!("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{}\"\r\n\r\n", path.display())
    };
    let form = format!("{}whole\r\n{}in part", part(&first), part(&second));
    let reply =
        guest.request("POST", "/files", &[("Content-Type", "multipart/form-data; boundary=b")], form.as_bytes());
    assert_eq!(reply.status, 400);
    assert_eq!(std::fs::read_to_string(&first).unwrap(), "whole");
    assert!(!second.exists());
}

#[test]
fn a_file_that_replaced_an_incomplete_upload_stays() {
    let guest = Guest::new();
    let path = guest.path("new");
    let begun = begin(&guest, &path, Body::Sized, b"part");
    wait_until(|| path.exists());
    std::fs::write(guest.path("theirs"), "theirs").unwrap();
    std::fs::rename(guest.path("theirs"), &path).unwrap();
    break_off(&guest, begun);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
}
