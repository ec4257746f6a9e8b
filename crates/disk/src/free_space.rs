//! The free space of a mounted btrfs, read from sysfs.
//!
//! `statfs` ignores the space that is reserved for pages that are not yet written, so for some seconds it reports free
//! space when there is none.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// With less free space for metadata, soon no file can be created.
const METADATA_LOW: u64 = 32 << 20;

/// The free space in a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeSpace {
    /// The space for file data.
    pub(super) free: u64,
    pub(super) is_starved: bool,
}

/// Reads the free space in the file system with this id, whose device has this size.
pub(super) fn read(uuid: &str, size: u64) -> io::Result<FreeSpace> {
    let allocation = Path::new("/sys/fs/btrfs").join(uuid).join("allocation");
    let groups = Groups::read(&allocation)?;
    let unallocated = size.saturating_sub(groups.on_disk);
    let metadata_missing = groups.metadata_used.saturating_sub(groups.metadata_total);
    let metadata_free = groups.metadata_total.saturating_sub(groups.metadata_used);
    Ok(FreeSpace {
        free: (unallocated + groups.data_total.saturating_sub(groups.data_used))
            .saturating_sub(metadata_missing)
            .min(size),
        is_starved: !groups.is_mixed && unallocated + metadata_free < METADATA_LOW,
    })
}

#[derive(Default)]
struct Groups {
    on_disk: u64,
    is_mixed: bool,
    data_total: u64,
    data_used: u64,
    metadata_total: u64,
    metadata_used: u64,
}

impl Groups {
    fn read(allocation: &Path) -> io::Result<Self> {
        let mut groups = Self::default();
        for kind in ["data", "metadata", "mixed", "system"] {
            let directory = allocation.join(kind);
            if !directory.is_dir() {
                continue;
            }
            groups.on_disk += number(directory.join("disk_total"))?;
            match kind {
                "system" => {}
                "metadata" => {
                    groups.metadata_total = number(directory.join("total_bytes"))?;
                    groups.metadata_used = used(&directory)?;
                }
                _ => {
                    groups.is_mixed = kind == "mixed";
                    groups.data_total = number(directory.join("total_bytes"))?;
                    groups.data_used = used(&directory)?;
                }
            }
        }
        Ok(groups)
    }
}

/// The space that is written, reserved, or not yet freed.
fn used(directory: &Path) -> io::Result<u64> {
    let parts = ["bytes_used", "bytes_reserved", "bytes_may_use", "bytes_pinned", "bytes_readonly"];
    parts.iter().map(|part| number(directory.join(part))).sum()
}

fn number(path: PathBuf) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}
