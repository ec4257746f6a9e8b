//! The ends of streams and pipes: how kernels get theirs, and who writes to the guest's.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv,
    recvmsg, sendmsg, sockopt,
};
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// How many kernels can get their ends with one message.
pub(super) const MAX_KERNELS: usize = 20;
/// Of one kernel.
const DESCRIPTORS: usize = 3;

/// A kernel's ends of its stream and pipes.
#[derive(Debug)]
pub(super) struct KernelEnds {
    pub(super) stream: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl KernelEnds {
    fn descriptors(&self) -> [BorrowedFd<'_>; DESCRIPTORS] {
        [self.stream.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]
    }
}

/// Sends bytes with the ends of at most [`MAX_KERNELS`] kernels. Returns how many bytes were sent.
pub(super) fn send_ends(socket: impl AsFd, bytes: &[u8], ends: &[KernelEnds]) -> io::Result<usize> {
    let fds: Vec<BorrowedFd<'_>> = ends.iter().flat_map(KernelEnds::descriptors).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_KERNELS * DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// From now on, the kernel records with each message who sent it.
pub(super) fn record_senders(stream: &UnixStream) -> io::Result<()> {
    Ok(sockopt::set_socket_passcred(stream, true)?)
}

/// Waits for the first bytes of a stream and returns the process that sent them, as the kernel recorded it. `None` if the
/// stream is closed. Senders must have been recorded since before the other end was given away.
pub(super) async fn first_sender(stream: &UnixStream) -> io::Result<Option<Pid>> {
    stream.async_io(Interest::READABLE, || peek_sender(stream)).await
}

fn peek_sender(stream: &UnixStream) -> io::Result<Option<Pid>> {
    let mut byte = [0];
    // At the end of the stream, the kernel reports the process 0, which a `Pid` cannot hold. So look for bytes first: the
    // guest alone reads them, so they are still there when it looks for their sender.
    if recv(stream, &mut byte, RecvFlags::PEEK)?.0 == 0 {
        return Ok(None);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC)?;
    let sender = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
        _ => None,
    });
    sender.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn the_sender_of_the_first_bytes_is_known_and_they_stay() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        record_senders(&ours).unwrap();
        theirs.write_all(b"hello").await.unwrap();
        assert_eq!(first_sender(&ours).await.unwrap(), Some(rustix::process::getpid()));
        let mut read = [0; 8];
        assert_eq!(ours.try_read(&mut read).unwrap(), 5);
    }

    #[tokio::test]
    async fn a_closed_stream_has_no_sender() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        record_senders(&ours).unwrap();
        drop(theirs);
        assert_eq!(first_sender(&ours).await.unwrap(), None);
    }
}
