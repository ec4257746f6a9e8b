//! The system calls that programs in a sandbox may use.
//!
//! [`rules`] is the list, as data; [`filter`] turns it into the program that the kernel runs. The filter is loaded once,
//! on the sandbox's first process, and everything inside inherits it.

mod filter;
mod rules;

use crate::sys::seccomp::Instruction;

/// The program for every sandbox on this architecture.
pub(crate) fn sandbox_filter() -> Vec<Instruction> {
    filter::assemble(&rules::table())
}
