//! Messages with file descriptors between processes of one host.
//!
//! A message is a JSON value in one packet of a sequenced-packet Unix socket, with descriptors attached. A receiver
//! gets a message whole or gets an error. It refuses a message whose text or descriptors the kernel had to truncate,
//! because receivers identify descriptors by position and would mistake one for another. The descriptors of a refused
//! message are closed.
//!
//! The limits are part of a channel's type. Sending and receiving allocate only the text and the list of descriptors.
//! They start no thread and take no lock, so a forked child may use a channel. The caller decides who the peer is and
//! whether to trust it.

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

/// Makes sending and receiving fail if the peer takes or sends nothing for `timeout`. `None` waits forever.
pub fn set_timeout(socket: impl AsFd, timeout: Option<Duration>) -> io::Result<()> {
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(socket.as_fd(), direction, timeout)?;
    }
    Ok(())
}

impl<const MAX_BYTES: usize, const MAX_FDS: usize> Channel<MAX_BYTES, MAX_FDS> {
    /// Keeps the timeouts that the socket has. A new socket has none.
    pub fn new(socket: OwnedFd) -> Self {
        const { assert!(MAX_FDS <= KERNEL_MAX_FDS, "MAX_FDS exceeds the kernel's limit") };
        Self { socket }
    }

    /// Sending and receiving fail if the peer does nothing for `timeout`.
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

    /// Waits for the next message. The received descriptors are close-on-exec. If the peer has closed its end, the
    /// error is [`io::ErrorKind::UnexpectedEof`].
    pub fn receive<M: DeserializeOwned>(&self) -> io::Result<(M, Vec<OwnedFd>)> {
        let mut text = vec![0; MAX_BYTES];
        let mut space = fd_space();
        // The kernel installs only as many descriptors as fit here, so a peer cannot fill our descriptor table with
        // ones that we refuse.
        let room = rustix::cmsg_space!(ScmRights(MAX_FDS));
        let mut ancillary = RecvAncillaryBuffer::new(&mut space[..room]);
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let fds = take_fds(&mut ancillary);
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The buffer is rounded up for alignment, so the kernel may deliver one or two descriptors too many without
        // truncating.
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((serde_json::from_slice(&text[..received.bytes])?, fds))
    }
}

/// Stack space for as many descriptors as the kernel passes at once.
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
