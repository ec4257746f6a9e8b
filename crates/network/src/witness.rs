//! Whether anything ever happened on a sandbox's network.
//!
//! A namespace on which no packet was ever sent, received, refused or dropped is as new: there is no neighbour, no
//! remembered path, no tracked connection and no half-closed one, for all of them begin with a packet. What else makes up a
//! network (addresses, routes, settings) the sandbox cannot change, because the namespace is not its own.

use super::netlink::{NetlinkError, Socket};
use super::route;

/// The loopback interface and the sandbox's end of the pair.
const INTERFACES: usize = 2;

/// A socket in a sandbox's network namespace that is only ever used to look.
#[derive(Debug)]
pub struct Witness {
    socket: Socket,
    mtu: u32,
}

impl Witness {
    pub(super) fn new(socket: Socket, mtu: u32) -> Self {
        Self { socket, mtu }
    }

    /// The packet size that the namespace was made for.
    pub(super) fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Whether the namespace is as new. To be asked when no process is left in it.
    pub(super) fn saw_nothing(&mut self) -> Result<bool, NetlinkError> {
        let traffic = route::traffic(&mut self.socket)?;
        Ok(traffic.len() == INTERFACES && traffic.iter().all(|seen| !seen))
    }
}
