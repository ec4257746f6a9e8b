//! Identifies the sender of a message over a Unix socket, by the kernel rather than the sender.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::check;

/// `SO_PASSPIDFD` and `SCM_PIDFD` of the kernel's headers, which the `libc` crate does not have.
const SO_PASSPIDFD: libc::c_int = 76;
const SCM_PIDFD: libc::c_int = 4;

/// The process that sent a message.
#[derive(Debug)]
pub struct Sender {
    /// Its pid in the caller's pid namespace.
    pub pid: u32,
    /// Its real user in the caller's user namespace.
    pub uid: u32,
    /// A handle that is never reused for another process.
    pub pidfd: OwnedFd,
}

/// Asks the kernel to name the sender of every message that arrives on this socket.
pub fn name_senders(socket: impl AsFd) -> io::Result<()> {
    set_socket_passcred(socket.as_fd(), true)?;
    let on: libc::c_int = 1;
    // SAFETY: the option takes one int, which lives over the call.
    let asked = check(libc::c_long::from(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSPIDFD,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    }));
    match asked {
        // Kernels before 6.5 send only the pid.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        other => other.map(drop),
    }
}

/// Space for the credentials, a pidfd and their headers.
const CONTROL_WORDS: usize = 16;

/// Receives one message on a socket prepared with [`name_senders`]. Descriptors in the message are closed.
///
/// # Errors
/// `UnexpectedEof` if the other end is closed; `InvalidData` if the kernel named no sender or the message was cut.
pub fn receive_named(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Sender)> {
    let mut control = [MaybeUninit::<u64>::uninit(); CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeroes is a valid `msghdr`; the pointers set below live over the call.
    let mut header = unsafe { std::mem::zeroed::<libc::msghdr>() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `header` points to a buffer and a control area that are as long as it says and live over the call.
    let length = check(unsafe { libc::recvmsg(fd, &raw mut header, libc::MSG_CMSG_CLOEXEC) } as libc::c_long)?;
    let (credentials, pidfd) = read_control(&header);
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let credentials = credentials.filter(|credentials| credentials.pid > 0);
    let (Some(credentials), true) = (credentials, header.msg_flags & libc::MSG_TRUNC == 0) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let pidfd = match pidfd {
        Some(pidfd) => pidfd.ok_or(Errno::SRCH)?,
        None => pidfd_open(Pid::from_raw(credentials.pid).ok_or(Errno::SRCH)?, PidfdFlags::empty())?,
    };
    Ok((length as usize, Sender { pid: credentials.pid.cast_unsigned(), uid: credentials.uid, pidfd }))
}

/// Takes ownership of every descriptor in a received control area and keeps the one that identifies the sender. That
/// one may be an error, for a sender that is gone. Then its pid must not be looked up, because it may have been reused.
fn read_control(header: &libc::msghdr) -> (Option<libc::ucred>, Option<Option<OwnedFd>>) {
    let (mut credentials, mut pidfd) = (None, None);
    // SAFETY: the kernel has written well-formed headers into the control area, and the macros stay within the length
    // that it set. Data are copied out unaligned, each with the size that its type has by the kernel's definition. Each
    // descriptor in there is new, and nobody else knows it.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(current) = message.as_ref() {
            let data = libc::CMSG_DATA(current);
            let bytes = current.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            match (current.cmsg_level, current.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                    credentials = Some(data.cast::<libc::ucred>().read_unaligned());
                }
                (libc::SOL_SOCKET, SCM_PIDFD) if bytes >= size_of::<libc::c_int>() => {
                    let fd = data.cast::<libc::c_int>().read_unaligned();
                    pidfd = Some((fd >= 0).then(|| OwnedFd::from_raw_fd(fd)));
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..bytes / size_of::<libc::c_int>() {
                        drop(OwnedFd::from_raw_fd(data.cast::<libc::c_int>().add(index).read_unaligned()));
                    }
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    (credentials, pidfd)
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
    use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

    use super::*;
    use crate::alone::alone;
    use crate::sys::process::{Fork, exit_now, fork};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair of sockets")
    }

    #[test]
    fn the_kernel_names_the_sender() {
        let (ours, theirs) = pair();
        name_senders(&ours).expect("the kernel names senders");
        send(&theirs, b"hello", SendFlags::empty()).expect("a message is sent");
        let mut buffer = [0; 16];
        let (length, sender) = receive_named(&ours, &mut buffer).expect("a message arrives");
        assert_eq!(&buffer[..length], b"hello");
        assert_eq!((sender.pid, sender.uid), (std::process::id(), rustix::process::getuid().as_raw()));
    }

    fn is_readable(pidfd: &OwnedFd) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)).expect("a pidfd can be polled") > 0
    }

    /// A child that sends a message, and ends when it receives one.
    fn speaker(theirs: &OwnedFd) -> (u32, OwnedFd) {
        let Fork::Parent { pid, pidfd } = fork().expect("a fork") else {
            let _ = send(theirs, b"hello", SendFlags::empty());
            let _ = recv(theirs, &mut [0; 1], RecvFlags::empty());
            exit_now(0)
        };
        (pid, pidfd)
    }

    #[test]
    fn the_handle_is_the_senders_and_tells_when_it_has_ended() {
        alone("sys::peer::tests::the_handle_is_the_senders_and_tells_when_it_has_ended", || {
            let (ours, theirs) = pair();
            name_senders(&ours).expect("the kernel names senders");
            let (pid, child) = speaker(&theirs);
            let (_, sender) = receive_named(&ours, &mut [0; 16]).expect("a message arrives");
            assert_eq!(sender.pid, pid);
            let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", sender.pidfd.as_raw_fd()));
            let about = about.expect("it is our own");
            assert!(about.lines().any(|line| line == format!("Pid:\t{pid}")), "{about}");
            assert!(!is_readable(&sender.pidfd), "it lives");
            send(&ours, b"x", SendFlags::empty()).expect("it hears");
            waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED).expect("it is our child");
            assert!(is_readable(&sender.pidfd), "it has ended");
        });
    }

    #[test]
    fn a_sender_that_is_gone_is_an_error_or_has_ended() {
        alone("sys::peer::tests::a_sender_that_is_gone_is_an_error_or_has_ended", || {
            let (ours, theirs) = pair();
            name_senders(&ours).expect("the kernel names senders");
            let (_, child) = speaker(&theirs);
            poll(&mut [PollFd::new(&ours, PollFlags::IN)], None).expect("it speaks");
            pidfd_send_signal(&child, Signal::KILL).expect("it lives");
            waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED).expect("it is our child");
            // Kernels before 6.16 return no pidfd of a process that was reaped.
            assert!(receive_named(&ours, &mut [0; 16]).map_or(true, |(_, sender)| is_readable(&sender.pidfd)));
        });
    }

    #[test]
    fn a_closed_end_and_a_cut_message_are_errors() {
        let (ours, theirs) = pair();
        name_senders(&ours).expect("the kernel names senders");
        send(&theirs, &[7; 64], SendFlags::empty()).expect("a message is sent");
        let cut = receive_named(&ours, &mut [0; 16]).expect_err("the message does not fit");
        assert_eq!(cut.kind(), io::ErrorKind::InvalidData);
        drop(theirs);
        let closed = receive_named(&ours, &mut [0; 16]).expect_err("nobody is there");
        assert_eq!(closed.kind(), io::ErrorKind::UnexpectedEof);
    }
}
