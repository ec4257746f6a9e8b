//! The connection between clients, the daemon and its supervisor.

/// The longest message is the list of all mounts.
const MAX_BYTES: usize = 1 << 20;
const MAX_FDS: usize = 4;

/// One end of a connection between these processes.
pub(super) type Channel = isopod_channel::Channel<MAX_BYTES, MAX_FDS>;
