//! Starting the daemon with inherited descriptors.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

use rustix::io::FdFlags;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes the descriptor inheritable; returns its number.
fn share(fd: impl AsFd) -> String {
    rustix::io::fcntl_setfd(&fd, FdFlags::empty()).unwrap();
    fd.as_fd().as_raw_fd().to_string()
}

fn ask(socket: &std::path::Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(request.replace('\n', "\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn it_takes_its_descriptors_says_when_it_is_ready_and_keeps_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let (ready, ready_child): (OwnedFd, OwnedFd) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    std::fs::write(dir.path().join("memory"), "7340032\n").unwrap();
    std::fs::write(dir.path().join("stat"), "inactive_file 1048576\nactive_file 0\n").unwrap();
    let (memory, stat) = (File::open(dir.path().join("memory")).unwrap(), File::open(dir.path().join("stat")).unwrap());
    let stray = File::open(dir.path().join("stat")).unwrap();
    share(&stray);
    let child = Command::new(env!("CARGO_BIN_EXE_isopod-guest"))
        .args(["init", "--listen-fd", &share(&listener), "--ready-fd", &share(&ready_child)])
        .args(["--memory-fd", &share(&memory), "--memory-stat-fd", &share(&stat)])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let child = Running(child);
    drop(ready_child);
    let mut told = Vec::new();
    File::from(ready).read_to_end(&mut told).unwrap();
    assert_eq!(told, b"1");
    let init = "POST /init HTTP/1.1\nHost: x\nX-Isopod-Control: 1\nContent-Length: 2\nConnection: close\n\n{}";
    assert!(ask(&socket, init).starts_with("HTTP/1.1 204"));
    let metrics = ask(&socket, "GET /metrics HTTP/1.1\nHost: x\nConnection: close\n\n");
    assert!(metrics.contains("\"mem_used\":6291456,\"mem_cache\":1048576"), "{metrics}");
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.0.id())).unwrap();
    let stat_path = dir.path().join("stat");
    let stats = open.filter(|entry| std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|to| to == stat_path));
    assert_eq!(stats.count(), 1, "the stray descriptor is still open");
}

#[test]
fn invalid_arguments_are_refused_at_once() {
    for args in [&["init"][..], &["init", "--listen-fd", "77"], &["what"], &[]] {
        let output = Command::new(env!("CARGO_BIN_EXE_isopod-guest")).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty());
    }
}
