//! Sockets that have a name in a directory.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

/// Listens under a name in a directory. Removes a socket that an earlier process left there.
pub fn listen_in(directory: &Path, name: &str, backlog: i32) -> io::Result<OwnedFd> {
    match fs::remove_file(directory.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = new_socket()?;
    with_address(directory, name, |address| bind(&socket, address))?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to the process that listens under a name in a directory.
pub fn connect_in(directory: &Path, name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    with_address(directory, name, |address| connect(&socket, address))?;
    Ok(socket)
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A socket address holds only 108 bytes, and the path of the directory may be longer. So the address goes through an
/// open descriptor of the directory.
fn with_address(
    directory: &Path,
    name: &str,
    act: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let directory = File::open(directory)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))?;
    Ok(act(&address)?)
}
