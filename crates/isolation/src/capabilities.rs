//! The capabilities of root in a sandbox, which are valid only in its own user namespace.

use std::io;

use isopod_wire::KernelFeatures;

use crate::sys::cred::{Capabilities, clear_ambient_set, drop_from_bounding_set};

/// The capabilities that are kept, with the reason. All others are dropped from the bounding set and can never come
/// back.
const KEPT: &[(u32, &str)] = &[
    (0, "CHOWN: package managers set owners"),
    (1, "DAC_OVERRIDE: root reads and writes what others own"),
    (3, "FOWNER: root changes modes of what others own"),
    (4, "FSETID: set-id bits survive a write by an installer"),
    (5, "KILL: root signals other users' processes"),
    (6, "SETGID: sudo, su, services that drop privileges"),
    (7, "SETUID: the same"),
    (8, "SETPCAP: programs drop capabilities from their own sets"),
    (10, "NET_BIND_SERVICE: ports below 1024 where the namespace asks for it"),
    (18, "SYS_CHROOT: installers and tests"),
    (27, "MKNOD: FIFOs by package scripts; devices are refused by the user namespace"),
    (29, "AUDIT_WRITE: su and login write audit records, and fail without it"),
    (31, "SETFCAP: packages with file capabilities"),
];

/// Kept as well in a sandbox with `fuse`. SYS_ADMIN over its own user namespace is what mounting takes.
const FOR_FUSE: u32 = 21;

const LAST_POSSIBLE: u32 = 63;

/// The numbers of the kept capabilities.
pub fn kept_capabilities() -> impl Iterator<Item = u32> {
    KEPT.iter().map(|(number, _)| *number)
}

/// The same as a bit mask.
pub(crate) fn kept_mask() -> u64 {
    kept_capabilities().fold(0, |set, number| set | 1 << number)
}

/// Empties the bounding set, so that programs started by this process have no capabilities. [`drop_all`] drops its own.
pub fn empty_bounding_set() -> io::Result<()> {
    (0..=LAST_POSSIBLE).try_for_each(drop_from_bounding_set)
}

/// Drops all capabilities of the calling process.
pub(crate) fn drop_all() -> io::Result<()> {
    clear_ambient_set()?;
    Capabilities { effective: 0, permitted: 0, inheritable: 0 }.apply()
}

/// What a process of a sandbox may have at most, as a bit mask.
pub(crate) fn allowed_mask(features: KernelFeatures) -> u64 {
    kept_mask() | u64::from(features.fuse) << FOR_FUSE
}

/// Reduces the calling process, and the programs it starts, to the kept capabilities and those that the features add.
pub(crate) fn drop_all_but_kept(features: KernelFeatures) -> io::Result<()> {
    let kept = allowed_mask(features);
    for capability in (0..=LAST_POSSIBLE).filter(|number| kept & (1 << number) == 0) {
        drop_from_bounding_set(capability)?;
    }
    clear_ambient_set()?;
    Capabilities { effective: kept, permitted: kept, inheritable: 0 }.apply()
}
