//! Making a network namespace without leaving one's own.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;

use isopod_isolation::sys::ns::{Namespaces, unshare};

/// A new network namespace, held by the descriptor alone. It belongs to the host's user namespace, so that root in a
/// sandbox has no say in it.
pub fn make_network_namespace() -> io::Result<OwnedFd> {
    // Namespaces belong to threads: one that makes it and ends leaves nothing changed behind.
    let thread = thread::Builder::new().name("netns".to_owned()).stack_size(128 << 10).spawn(|| {
        unshare(Namespaces::NET)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })?;
    thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}
