//! Creates network namespaces without leaving the current one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;

use isopod_isolation::sys::ns::{Namespaces, unshare};

/// Creates a network namespace that only the returned descriptor keeps alive. It belongs to the host's user namespace,
/// so that root in a sandbox has no power over it.
pub fn make_network_namespace() -> io::Result<OwnedFd> {
    // Each thread has its own namespace. A thread that enters a new one and then ends leaves the others unchanged.
    let thread = thread::Builder::new().name("netns".to_owned()).stack_size(128 << 10).spawn(|| {
        unshare(Namespaces::NET)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })?;
    thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}
