//! The channel between server, spawner, launchers and first processes.

/// The largest part of a message is a file such as a long `/proc/cpuinfo`.
const MAX_BYTES: usize = 1 << 17;
/// One per layer of a root. The kernel allows no more.
const MAX_FDS: usize = isopod_channel::KERNEL_MAX_FDS;

/// One end of a connection between these processes.
pub(super) type Channel = isopod_channel::Channel<MAX_BYTES, MAX_FDS>;
