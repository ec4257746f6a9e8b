//! The usage of an area.

use isopod_wire::Bytes;

/// The current usage and the limit of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The used space, or `None` if the file system does not count it. It may lag behind by what is not yet written to
    /// the disk.
    pub used: Option<Bytes>,
    pub limit: Option<Bytes>,
}
