//! Messages with file descriptors over a sequenced-packet socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The kernel's bound on descriptors in one message.
const MOST_FDS: usize = 253;
/// Figures such as a long `/proc/cpuinfo` are the largest part of a message.
const MOST_BYTES: usize = 1 << 17;

/// One end of a conversation.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
}

/// Two connected ends.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Channel {
    /// A peer that does not answer within `patience` is an error. Zero waits for ever.
    pub(super) fn new(socket: OwnedFd, patience: Duration) -> Self {
        let patience = Some(patience).filter(|patience| !patience.is_zero());
        for direction in [Timeout::Recv, Timeout::Send] {
            // Only a socket that is none would refuse, and the first message then says so.
            let _ = set_socket_timeout(&socket, direction, patience);
        }
        Self { socket }
    }

    /// With whatever patience the socket already has.
    pub(super) fn from_socket(socket: OwnedFd) -> Self {
        Self { socket }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
