//! How a disk is set up.

use std::path::PathBuf;

use isopod_wire::Bytes;

/// How a disk is set up.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The most that an image may grow to. Without it, what the host's disk has besides the reserve.
    pub image_size: Option<Bytes>,
    /// Whether quotas may be turned on for the whole btrfs file system that the state directory is on. It slows down a
    /// file system with many snapshots, so the administrator decides; without it the image is used there too.
    pub may_enable_quota: bool,
    /// The program that formats the image, by name or path.
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
