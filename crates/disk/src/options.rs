//! Options for setting up a disk.

use std::path::PathBuf;

use isopod_wire::Bytes;

/// How to set up a disk.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The maximum size of an image. The default is all space on the host's disk except the reserve.
    pub image_size: Option<Bytes>,
    /// Whether quotas may be turned on for the whole btrfs file system of the state directory. Quotas slow down a file
    /// system with many snapshots, so the administrator decides. Without the permission, the image is used there too.
    pub may_enable_quota: bool,
    /// The program that formats the image, as a name or a path.
    pub mkfs_program: PathBuf,
}

impl DiskOptions {
    pub(crate) fn max_size(&self) -> u64 {
        self.image_size.map_or(u64::MAX, |most| most.0)
    }
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { image_size: None, may_enable_quota: false, mkfs_program: PathBuf::from("mkfs.btrfs") }
    }
}
