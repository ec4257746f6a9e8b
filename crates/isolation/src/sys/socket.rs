//! The kernel's view of a TCP connection.

use std::io;
use std::os::fd::BorrowedFd;

use super::ioctl::ioctl_with;

/// Returns the bytes written to a TCP connection that the other host has not acknowledged yet. Also correct if the
/// other side has closed: what it was sent afterwards is never acknowledged.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ has the number of TIOCOUTQ and writes one int.
    unsafe { ioctl_with(socket, libc::TIOCOUTQ as libc::Ioctl, &mut bytes)? };
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn what_is_sent_to_a_closed_connection_is_never_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(&[1; 100]).unwrap();
        client.read_exact(&mut [0; 100]).unwrap();
        drop(client);
        assert_eq!(unacknowledged(server.as_fd()).unwrap(), 0);
        server.write_all(&[1; 50]).unwrap();
        // It does not matter whether the write or the reset that answers it comes first.
        assert_eq!(unacknowledged(server.as_fd()).unwrap(), 50);
        while server.write_all(&[1; 1]).is_ok() {}
        assert!(unacknowledged(server.as_fd()).unwrap() >= 50);
    }
}
