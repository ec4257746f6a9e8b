//! The writable layers of sandboxes, each with a limit if the host can enforce one.
//!
//! Every sandbox gets an *area*: a directory of its own below `<state>/disk/areas`. How its limit is enforced depends
//! on the file system of the state directory:
//!
//! 1. ext4 or xfs with `prjquota`: a directory with a project id;
//! 2. btrfs with quotas on: a subvolume with a qgroup;
//! 3. anything else: a subvolume with a qgroup in a btrfs image that is mounted at `<state>/disk`;
//! 4. if that is not possible: a plain directory without a limit, and [`Disk::no_limit`] says why.
//!
//! A write beyond the limit fails with EDQUOT or ENOSPC (see [`is_disk_full`]) and does not affect other areas. Areas
//! and the mount outlive the process. The next process that opens the same state directory finds them. A process that
//! is killed between two steps leaves at most an area that [`Disk::area_names`] lists and [`Disk::remove_area`]
//! removes.

mod blocks;
mod choose;
mod copy;
mod disk;
mod error;
mod folder;
mod free_space;
mod image;
mod kind;
mod lock;
mod mkfs;
mod mounts;
mod name;
mod options;
mod places;
mod plain;
mod projects;
mod size;
mod subvolumes;
mod trash;
mod tree;
mod usage;
mod watch;

pub use copy::Amount;
pub use disk::{Area, Copying, Disk};
pub use error::{DiskError, NoLimit, is_disk_full};
pub use kind::DiskKind;
pub use name::{AreaName, NameError};
pub use options::DiskOptions;
pub use size::available_at;
pub use tree::remove_tree;
pub use usage::Usage;
