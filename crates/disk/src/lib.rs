//! Where the writable layers of sandboxes live, each with a limit where the host can limit.
//!
//! Every sandbox gets an *area*: a directory of its own below `<state>/disk/areas`. How it is limited depends on the
//! file system of the state directory:
//!
//! 1. ext4 or xfs with `prjquota`: a directory with a project id;
//! 2. btrfs with quotas on: a subvolume with a qgroup;
//! 3. anything else: a subvolume with a qgroup in a btrfs image that is mounted at `<state>/disk`;
//! 4. where that cannot be: a plain directory without limit, and [`Disk::no_limit`] says why.
//!
//! A write past the limit fails with EDQUOT or ENOSPC (see [`is_disk_full`]) and leaves the other areas alone. Areas
//! and the mount outlive the process; the next one that opens the same state directory finds them. A process killed
//! between two steps leaves at most an area that [`Disk::area_names`] tells and [`Disk::remove_area`] removes.

mod choose;
mod disk;
mod error;
mod folder;
mod free_space;
mod image;
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

pub use disk::{Area, Disk};
pub use error::{DiskError, NoLimit, is_disk_full};
pub use name::{AreaName, NameError};
pub use options::DiskOptions;
pub use size::available_at;
pub use tree::remove_tree;
pub use usage::Usage;
