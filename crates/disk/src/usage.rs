//! What an area uses.

use isopod_wire::Bytes;

/// What an area has used and may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// What is used, `None` where the file system does not count it. May lag behind by what is not yet written out.
    pub used: Option<Bytes>,
    /// What may be used at most.
    pub limit: Option<Bytes>,
}
