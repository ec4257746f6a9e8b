#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs::File;
use std::io::{Read as _, Write as _};

use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

const SHORT: Duration = Duration::from_millis(20);

/// The receiving end in most tests.
type Small = Channel<64, 2>;
/// A peer that observes no limit except the kernel's.
type Unbound = Channel<{ 1 << 16 }, KERNEL_MAX_FDS>;

fn connect() -> (Unbound, Small) {
    let (theirs, ours) = pair().unwrap();
    (Unbound::new(theirs), Small::with_timeout(ours, Duration::from_secs(10)).unwrap())
}

fn pipe() -> (File, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (reader.into(), writer)
}

/// Returns only after every writing end is closed.
fn read_all(mut reader: File) -> String {
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_message_comes_with_its_descriptors_in_order() {
    let (theirs, ours) = connect();
    let pipes = [pipe(), pipe()];
    theirs.send(&("two", 2), &pipes.each_ref().map(|(_, writer)| writer.as_fd())).unwrap();
    theirs.send(&("none", 0), &[]).unwrap();

    let (message, fds) = ours.receive::<(String, u32)>().unwrap();
    assert_eq!(message, ("two".to_owned(), 2));
    assert_eq!(fds.len(), 2);
    for (index, fd) in fds.into_iter().enumerate() {
        assert!(fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
        write!(File::from(fd), "{index}").unwrap();
    }
    let (message, fds) = ours.receive::<(String, u32)>().unwrap();
    assert_eq!((message.0.as_str(), fds.len()), ("none", 0));
    assert_eq!(pipes.map(|(reader, writer)| (drop(writer), read_all(reader)).1), ["0", "1"]);
}

#[test]
fn a_message_over_a_limit_is_not_sent() {
    let (theirs, ours) = pair().unwrap();
    let (theirs, ours) = (Small::new(theirs), Small::with_timeout(ours, SHORT).unwrap());
    let (_, writer) = pipe();
    let too_long = theirs.send(&"x".repeat(63), &[]).unwrap_err();
    let too_many = theirs.send(&1, &[writer.as_fd(); 3]).unwrap_err();
    assert_eq!([too_long.kind(), too_many.kind()], [io::ErrorKind::InvalidInput; 2]);
    assert_eq!(ours.receive::<u32>().unwrap_err().kind(), io::ErrorKind::WouldBlock);

    theirs.send(&"x".repeat(62), &[writer.as_fd(); 2]).unwrap();
    let (text, fds) = ours.receive::<String>().unwrap();
    assert_eq!((text.len(), fds.len()), (62, 2));
}

/// A truncated number is still a valid number, so parsing alone would not notice that its end is missing.
#[test]
fn a_text_that_was_cut_is_refused_and_the_next_message_is_whole() {
    let (theirs, ours) = connect();
    let (reader, writer) = pipe();
    let mut number = b"7".repeat(10);
    number.resize(65, b' ');
    send(theirs.socket(), &number, SendFlags::NOSIGNAL).unwrap();
    theirs.send(&"x".repeat(1000), &[writer.as_fd()]).unwrap();
    theirs.send(&1, &[]).unwrap();
    drop(writer);
    assert_eq!(ours.receive::<u64>().unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(ours.receive::<String>().unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(ours.receive::<u64>().unwrap().0, 1);
    assert_eq!(read_all(reader), "", "the descriptor of a refused message is closed");
}

#[test]
fn too_many_descriptors_are_refused_and_closed() {
    for count in [3, 4, 5, KERNEL_MAX_FDS] {
        let (theirs, ours) = connect();
        let (reader, writer) = pipe();
        theirs.send(&1, &vec![writer.as_fd(); count]).unwrap();
        drop(writer);
        assert_eq!(ours.receive::<u32>().unwrap_err().kind(), io::ErrorKind::InvalidData, "{count}");
        assert_eq!(read_all(reader), "");
    }
}

#[test]
fn as_many_descriptors_pass_as_the_kernel_allows() {
    let (theirs, ours) = pair().unwrap();
    let (theirs, ours) = (Unbound::new(theirs), Unbound::new(ours));
    let (reader, writer) = pipe();
    theirs.send(&1, &[writer.as_fd(); KERNEL_MAX_FDS]).unwrap();
    assert_eq!(theirs.send(&1, &[writer.as_fd(); KERNEL_MAX_FDS + 1]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(ours.receive::<u32>().unwrap().1.len(), KERNEL_MAX_FDS);
    drop(writer);
    assert_eq!(read_all(reader), "");
}

#[test]
fn what_is_no_message_is_refused_and_its_descriptors_are_closed() {
    let (theirs, ours) = connect();
    let (reader, writer) = pipe();
    theirs.send(&"a text", &[writer.as_fd()]).unwrap();
    drop(writer);
    let refused = ours.receive::<u32>().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    assert_eq!(read_all(reader), "");

    send(theirs.socket(), b"", SendFlags::NOSIGNAL).unwrap();
    assert_eq!(ours.receive::<u32>().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_peer_that_is_gone_is_an_error_after_its_last_message() {
    let (theirs, ours) = connect();
    theirs.send(&1, &[]).unwrap();
    drop(theirs);
    assert_eq!(ours.receive::<u32>().unwrap().0, 1);
    assert_eq!(ours.receive::<u32>().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(ours.send(&1, &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn descriptors_that_a_peer_never_read_are_closed_with_it() {
    let (theirs, ours) = connect();
    let (reader, writer) = pipe();
    ours.send(&1, &[writer.as_fd()]).unwrap();
    drop((theirs, writer));
    assert_eq!(read_all(reader), "");
    assert_eq!(ours.receive::<u32>().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_silent_peer_is_an_error_and_so_is_one_that_reads_nothing() {
    let (_theirs, ours) = pair().unwrap();
    let ours = Small::with_timeout(ours, SHORT).unwrap();
    assert_eq!(ours.receive::<u32>().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let full = (0..1_000_000).find_map(|_| ours.send(&1, &[]).err()).unwrap();
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn only_a_socket_takes_a_timeout() {
    let (reader, _writer) = pipe();
    assert!(Small::with_timeout(reader.into(), SHORT).is_err());
}

#[test]
fn a_listener_in_a_deep_directory_takes_the_place_of_one_that_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let deep = directory.path().join("deeper-than-an-address".repeat(6));
    std::fs::create_dir(&deep).unwrap();
    assert_eq!(connect_in(&deep, "s").unwrap_err().kind(), io::ErrorKind::NotFound);
    drop(listen_in(&deep, "s", 1).unwrap());
    assert_eq!(connect_in(&deep, "s").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);

    let listener = listen_in(&deep, "s", 1).unwrap();
    let theirs = Small::new(connect_in(&deep, "s").unwrap());
    theirs.send(&1, &[]).unwrap();
    let ours = Small::new(accept_with(&listener, SocketFlags::CLOEXEC).unwrap());
    assert_eq!(ours.receive::<u32>().unwrap().0, 1);
}
