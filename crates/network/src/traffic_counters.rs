//! Tells whether a sandbox's network was ever used.
//!
//! A namespace in which no packet was ever sent, received, refused or dropped is as good as new. It has no neighbours,
//! no cached paths, no tracked connections and no half-closed ones, because all of these start with a packet. The
//! sandbox cannot change its addresses, routes and settings, because the namespace does not belong to it.

use super::netlink::{NetlinkError, Socket};
use super::route;

/// The loopback interface and the sandbox's end of the pair.
const INTERFACES: usize = 2;

/// A socket in a sandbox's network namespace that is used only for reading counters.
#[derive(Debug)]
pub struct TrafficCounters {
    socket: Socket,
    mtu: u32,
}

impl TrafficCounters {
    pub(super) fn new(socket: Socket, mtu: u32) -> Self {
        Self { socket, mtu }
    }

    /// The MTU with which the namespace was set up.
    pub(super) fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Whether the namespace is as good as new. Call this after its last process has ended.
    pub(super) fn saw_nothing(&mut self) -> Result<bool, NetlinkError> {
        let traffic = route::traffic(&mut self.socket)?;
        Ok(traffic.len() == INTERFACES && traffic.iter().all(|seen| !seen))
    }
}
