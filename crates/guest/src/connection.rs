//! Names the descriptors that lead from a process to the guest, as a checkpoint does.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use isopod_wire::checkpoint::Connection;
use rustix::fs::fstat;

/// The process's end of a connection that the guest has made again.
#[derive(Debug)]
pub(crate) struct ProcessEnd {
    /// As it was named when the process was dumped.
    pub(crate) connection: Connection,
    pub(crate) descriptor: Arc<OwnedFd>,
}

pub(crate) fn of_pipe(end: impl AsFd) -> rustix::io::Result<Connection> {
    Ok(Connection::Pipe { inode: fstat(end)?.st_ino })
}

pub(crate) fn of_socket(process_end: impl AsFd) -> rustix::io::Result<Connection> {
    Ok(Connection::Socket { inode: fstat(process_end)?.st_ino })
}

pub(crate) fn of_terminal(process_end: impl AsFd) -> rustix::io::Result<Connection> {
    let stat = fstat(process_end)?;
    Ok(Connection::Terminal { device: stat.st_rdev, file_system: stat.st_dev })
}
