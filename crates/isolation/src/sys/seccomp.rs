//! Loading a seccomp filter.

use std::io;

use super::check;

/// One instruction of classic BPF, in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// How many instructions to skip if a comparison holds.
    pub jump_true: u8,
    /// How many to skip if it does not.
    pub jump_false: u8,
    /// The operand.
    pub operand: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

/// Loads a filter for the calling thread and everything it starts.
///
/// Does not set `no_new_privs`, because set-uid programs must keep working inside. The caller has CAP_SYS_ADMIN in its
/// user namespace, which the kernel accepts instead.
pub fn load(filter: &[Instruction]) -> io::Result<()> {
    const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
    let length = u16::try_from(filter.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = Program { length, instructions: filter.as_ptr() };
    // SAFETY: the program points to `length` instructions, which the slice keeps alive over the call.
    check(unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const program) }).map(drop)
}
