//! Credentials of the calling process: ids, groups, capabilities, and related flags.
//!
//! Uses raw system calls where libc would signal every thread. Callers are single-threaded by contract, and `setfsuid`
//! is per thread anyway.

use std::io;

use super::check;

/// Sets real, effective and saved ids. `None` leaves an id unchanged.
pub fn set_user_ids(real: Option<u32>, effective: Option<u32>, saved: Option<u32>) -> io::Result<()> {
    let [real, effective, saved] = [real, effective, saved].map(|id| id.unwrap_or(u32::MAX));
    // SAFETY: setresuid takes three integers and touches no memory of ours.
    check(unsafe { libc::syscall(libc::SYS_setresuid, real, effective, saved) }).map(drop)
}

/// Like [`set_user_ids`], for groups.
pub fn set_group_ids(real: Option<u32>, effective: Option<u32>, saved: Option<u32>) -> io::Result<()> {
    let [real, effective, saved] = [real, effective, saved].map(|id| id.unwrap_or(u32::MAX));
    // SAFETY: setresgid takes three integers and touches no memory of ours.
    check(unsafe { libc::syscall(libc::SYS_setresgid, real, effective, saved) }).map(drop)
}

/// Drops all supplementary groups.
pub fn clear_groups() -> io::Result<()> {
    // SAFETY: with a length of zero the pointer is not read.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) }).map(drop)
}

/// Makes this thread access files with the given ids, and keeps all capabilities.
///
/// The kernel drops file capabilities when fsuid leaves 0. They are restored, because an overlay keeps the credentials
/// of its mounter and needs both: an id that exists behind the id-mapped layers, and all capabilities.
pub fn set_file_ids(uid: u32, gid: u32) -> io::Result<()> {
    let capabilities = Capabilities::current()?;
    // SAFETY: setfsgid and setfsuid take one integer. They report the previous id, never an error.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
    capabilities.apply()
}

/// The three capability sets of a thread, as bit masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// In use now.
    pub effective: u64,
    /// Can be made effective.
    pub permitted: u64,
    /// Kept over exec of a file that also has it inheritable.
    pub inheritable: u64,
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

impl Capabilities {
    /// Returns those of the calling thread.
    pub fn current() -> io::Result<Self> {
        let mut header = CapHeader { version: CAPABILITY_VERSION_3, pid: 0 };
        let mut data = [CapData::default(); 2];
        // SAFETY: version 3 writes two data elements, and the array has two; both pointers live over the call.
        check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
        let join = |part: fn(&CapData) -> u32| u64::from(part(&data[0])) | u64::from(part(&data[1])) << 32;
        Ok(Self {
            effective: join(|data| data.effective),
            permitted: join(|data| data.permitted),
            inheritable: join(|data| data.inheritable),
        })
    }

    /// Sets those of the calling thread.
    pub fn apply(self) -> io::Result<()> {
        let mut header = CapHeader { version: CAPABILITY_VERSION_3, pid: 0 };
        let part = |shift: u32| CapData {
            effective: (self.effective >> shift) as u32,
            permitted: (self.permitted >> shift) as u32,
            inheritable: (self.inheritable >> shift) as u32,
        };
        let data = [part(0), part(32)];
        // SAFETY: version 3 reads two data elements, and the array has two; both pointers live over the call.
        check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) }).map(drop)
    }
}

/// Removes one capability from the bounding set, permanently. A number that the kernel does not know is no error.
pub fn drop_from_bounding_set(capability: u32) -> io::Result<()> {
    match prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    }
}

/// Clears the ambient set.
pub fn clear_ambient_set() -> io::Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong)
}

/// Whether others of the same user, or the owner of its user namespace, may read this process' memory and descriptors.
pub fn is_dumpable() -> io::Result<bool> {
    // SAFETY: the option takes no argument; the unused ones are zero as it demands.
    let answer = check(libc::c_long::from(unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) }))?;
    Ok(answer == 1)
}

/// Makes the calling process adopt orphans among its descendants.
pub fn become_subreaper() -> io::Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// Starts a new session keyring, so that keys of the parent are out of reach.
pub fn new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring; nothing is read.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) }).map(drop)
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: every option used in this file takes integers only; the unused arguments are zero as it demands.
    check(libc::c_long::from(unsafe { libc::prctl(option, argument, 0, 0, 0) })).map(drop)
}
