//! The ways to keep what sandboxes write.

/// Where areas are, which decides whether they can have limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// Directories with project quotas of ext4 or xfs.
    Projects,
    /// Subvolumes with quotas on the btrfs of the state directory.
    Subvolumes,
    /// The same on a btrfs image in the state directory.
    Image,
    /// Plain directories, which cannot have limits.
    Plain,
}

impl std::fmt::Display for DiskKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Projects => "directories with project quotas",
            Self::Subvolumes => "btrfs subvolumes with quotas",
            Self::Image => "a btrfs image",
            Self::Plain => "a plain directory",
        })
    }
}
