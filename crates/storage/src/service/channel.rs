//! Messages with descriptors over sequenced-packet sockets: between clients, the daemon and its keeper.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg, sendmsg, socket_with,
    socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

const MOST_FDS: usize = 4;
/// The list of all mounts is the longest message.
const MOST_BYTES: usize = 1 << 20;
const BACKLOG: i32 = 128;

/// One end of a conversation.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Whoever does not answer within this time is an error.
    pub(super) fn with_patience(self, patience: Duration) -> io::Result<Self> {
        set_socket_timeout(&self.socket, Timeout::Recv, Some(patience))?;
        set_socket_timeout(&self.socket, Timeout::Send, Some(patience))?;
        Ok(self)
    }

    pub(super) fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(&self.socket, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    pub(super) fn receive<M: DeserializeOwned>(&self) -> io::Result<(M, Vec<OwnedFd>)> {
        let mut text = vec![0; MOST_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        Ok((serde_json::from_slice(&text[..received.bytes])?, fds))
    }
}

/// Two connected ends.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens under a name in a directory. What was left there by somebody who is gone goes.
pub(super) fn listen_in(directory: &Path, name: &str) -> io::Result<OwnedFd> {
    match std::fs::remove_file(directory.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = new_socket()?;
    with_address(directory, name, |address| bind(&socket, address))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

pub(super) fn connect_in(directory: &Path, name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    with_address(directory, name, |address| connect(&socket, address))?;
    Ok(socket)
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The directory may lie deeper than the 108 bytes of a socket's address allow: go through an open one.
fn with_address(
    directory: &Path,
    name: &str,
    act: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let directory = File::open(directory)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))?;
    Ok(act(&address)?)
}
