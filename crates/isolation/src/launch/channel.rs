//! How server, spawner, launchers and first processes talk.

/// Figures such as a long `/proc/cpuinfo` are the largest part of a message.
const MAX_BYTES: usize = 1 << 17;
/// One per layer of a root, and the kernel takes no more.
const MAX_FDS: usize = isopod_channel::KERNEL_MAX_FDS;

/// One end of a connection between these processes.
pub(super) type Channel = isopod_channel::Channel<MAX_BYTES, MAX_FDS>;
