//! Messages to a zygote: JSON over a sequenced-packet socket.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::{Deserialize, Serialize};

use super::channel::Channel;
use crate::capabilities::kept_capabilities;
use crate::seccomp::sandbox_filter_bytes;

/// A sandbox to enter, and the user inside.
#[derive(Debug)]
pub struct Enter<'a> {
    /// Ids inside the sandbox.
    pub user: u32,
    pub group: u32,
    /// Its working directory.
    pub home: &'a str,
    /// Those of [`Enter::NAMESPACES`] that the sandbox has: see [`namespaces_of`].
    pub namespaces: &'a [(&'static str, File)],
    /// The connection to serve once inside.
    pub forkserver: BorrowedFd<'a>,
    /// The fork's end of an [`super::Admission`].
    pub admission: BorrowedFd<'a>,
}

impl Enter<'_> {
    /// In the order in which they are entered. The user namespace grants the right to enter the others.
    pub const NAMESPACES: &'static [&'static str] = &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];
}

/// Those of [`Enter::NAMESPACES`] that this kernel has.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    names_if(link("self", "time").is_ok())
}

/// `CONFIG_TIME_NS` is an option of kernels. Sandboxes need all others.
fn names_if(has_time: bool) -> impl Iterator<Item = &'static str> {
    Enter::NAMESPACES.iter().copied().filter(move |name| *name != "time" || has_time)
}

/// Opens the namespaces of a sandbox by its first process. A boot clock that is the host's is left out: whoever comes from
/// outside has it already, and may not enter it.
pub fn namespaces_of(init: u32) -> io::Result<Vec<(&'static str, File)>> {
    let is_hosts = |name: &str| name == "time" && link("self", name).ok() == link(&init.to_string(), name).ok();
    let entered = names().filter(|name| !is_hosts(name));
    entered.map(|name| Ok((name, File::open(format!("/proc/{init}/ns/{name}"))?))).collect()
}

fn link(process: &str, name: &str) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/{name}"))
}

/// Descriptors: namespaces, the filter, the fork's end of its admission, the connection.
#[derive(Serialize)]
struct EnterOrder<'a> {
    op: &'static str,
    uid: u32,
    gid: u32,
    groups: [u32; 0],
    home: &'a str,
    namespaces: Vec<&'static str>,
    caps_kept: Vec<u32>,
}

/// A message of a zygote. The result of an order is reported over its admission.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ZygoteMessage {
    /// It is ready.
    Ready {},
    /// It could not read an order.
    Failed { step: String, error: String },
}

/// How long an order may wait if the zygote does not read it.
const ORDER_TIMEOUT: Duration = Duration::from_millis(500);

/// The server's end of the connection to a zygote.
#[derive(Debug)]
pub struct ZygoteSocket {
    channel: Channel,
    /// Loaded by the process that enters.
    filter: File,
}

/// Returns two connected ends: the server's and the zygote's.
pub fn zygote_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    isopod_channel::pair()
}

impl ZygoteSocket {
    /// A zygote that does not accept an order or get ready within `timeout` is an error.
    pub fn new(socket: OwnedFd, timeout: Duration) -> io::Result<Self> {
        let mut filter = File::from(memfd_create("filter", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        filter.write_all(&sandbox_filter_bytes())?;
        filter.rewind()?;
        // The interpreters of all sandboxes load it, and a zygote holds it in between, so it must not be changeable.
        fcntl_add_seals(&filter, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self { channel: Channel::with_timeout(socket, timeout)?, filter })
    }

    /// The same connection, for another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        let socket = self.channel.socket().try_clone_to_owned()?;
        let channel = Channel::new(socket);
        Ok(Self { channel, filter: self.filter.try_clone()? })
    }

    /// Orders an interpreter into a sandbox.
    pub fn send(&self, enter: &Enter<'_>) -> io::Result<()> {
        let order = EnterOrder {
            op: "enter",
            uid: enter.user,
            gid: enter.group,
            groups: [],
            home: enter.home,
            namespaces: enter.namespaces.iter().map(|(name, _)| *name).collect(),
            caps_kept: kept_capabilities().collect(),
        };
        let files = enter.namespaces.iter().map(|(_, file)| file).chain([&self.filter]);
        let fds: Vec<BorrowedFd<'_>> = files.map(AsFd::as_fd).chain([enter.admission, enter.forkserver]).collect();
        self.channel.send(&order, &fds)
    }

    /// Receives the next message.
    pub fn receive(&self) -> io::Result<ZygoteMessage> {
        Ok(self.channel.receive()?.0)
    }

    /// From now on, also on every clone of the connection: waits forever for messages, but only a moment to send an
    /// order. A zygote runs the code of its template and must not block the creation of sandboxes.
    pub fn wait_patiently(&self) -> io::Result<()> {
        set_socket_timeout(self.channel.socket(), Timeout::Recv, None)?;
        Ok(set_socket_timeout(self.channel.socket(), Timeout::Send, Some(ORDER_TIMEOUT))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_kernel_without_time_namespaces_only_that_one_is_left_out() {
        assert!(names_if(true).eq(Enter::NAMESPACES.iter().copied()));
        let all_but_time = Enter::NAMESPACES.iter().copied().filter(|name| *name != "time");
        assert!(names_if(false).eq(all_but_time));
        assert_eq!(names_if(false).count() + 1, Enter::NAMESPACES.len());
    }
}
