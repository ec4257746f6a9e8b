//! Messages with descriptors between processes of one host.
//!
//! A message is a value as JSON in one packet of a sequenced-packet Unix socket, with descriptors beside it. A received
//! message is whole or an error: one whose text or descriptors the kernel had to cut is refused, because a receiver that
//! counts descriptors by position would take one for another. Descriptors of a refused message are closed.
//!
//! The limits are part of a channel's type. Sending and receiving allocate the text and the list of descriptors and nothing
//! else, start no thread and take no lock, so a process that forks may use it in the child. Who the peer is, and whether to
//! believe it, is up to the caller.

mod socket;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use socket::{connect_in, listen_in};

/// The kernel's limit on descriptors in one message (`SCM_MAX_FD`).
pub const KERNEL_MAX_FDS: usize = 253;

/// One end of a connection on which a message has at most `MAX_BYTES` bytes and `MAX_FDS` descriptors.
#[derive(Debug)]
pub struct Channel<const MAX_BYTES: usize, const MAX_FDS: usize> {
    socket: OwnedFd,
}

/// Two connected sockets, closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Makes it an error when a peer sends nothing, or takes nothing, for so long. `None` waits for ever.
pub fn set_timeout(socket: impl AsFd, timeout: Option<Duration>) -> io::Result<()> {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket.as_fd(), direction, timeout)?;
    }
    Ok(())
}

impl<const MAX_BYTES: usize, const MAX_FDS: usize> Channel<MAX_BYTES, MAX_FDS> {
    /// With the timeouts that the socket has; a new one has none.
    pub fn new(socket: OwnedFd) -> Self {
        const { assert!(MAX_FDS <= KERNEL_MAX_FDS, "the kernel passes no more descriptors than that") };
        Self { socket }
    }

    /// A peer that does not answer within `timeout` is an error.
    pub fn with_timeout(socket: OwnedFd, timeout: Duration) -> io::Result<Self> {
        set_timeout(&socket, Some(timeout))?;
        Ok(Self::new(socket))
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        if text.len() > MAX_BYTES || fds.len() > MAX_FDS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = fd_space();
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(&self.socket, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for the next message. The descriptors are closed on exec. A peer that has closed is
    /// [`io::ErrorKind::UnexpectedEof`].
    pub fn receive<M: DeserializeOwned>(&self) -> io::Result<(M, Vec<OwnedFd>)> {
        let mut text = vec![0; MAX_BYTES];
        let mut space = fd_space();
        // The kernel installs no more descriptors than fit, so a peer cannot fill our table with those we refuse.
        let room = rustix::cmsg_space!(ScmRights(MAX_FDS));
        let mut ancillary = RecvAncillaryBuffer::new(&mut space[..room]);
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let fds = take_fds(&mut ancillary);
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The room is rounded up for alignment, so one or two too many may have come uncut.
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((serde_json::from_slice(&text[..received.bytes])?, fds))
    }
}

/// Room for as many descriptors as the kernel passes at once, on the stack.
fn fd_space() -> [MaybeUninit<u8>; rustix::cmsg_space!(ScmRights(KERNEL_MAX_FDS))] {
    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX_FDS))]
}

fn take_fds(ancillary: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    fds
}

#[cfg(test)]
mod tests;
