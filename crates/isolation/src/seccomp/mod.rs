//! The system calls that programs in a sandbox may use.
//!
//! [`rules`] is the list, as data. [`filter`] compiles it into the program for the kernel. The filter is loaded once,
//! on the sandbox's first process, and everything inside inherits it.

mod filter;
mod rules;

use isopod_wire::KernelFeatures;

use crate::sys::seccomp::Instruction;

/// Returns the program for a sandbox on this architecture.
pub(crate) fn sandbox_filter(features: KernelFeatures) -> Vec<Instruction> {
    filter::assemble(&rules::table_with(features))
}

/// Returns the program for a zygote: what a sandbox may do, plus what entering one requires.
pub(crate) fn zygote_filter() -> Vec<Instruction> {
    filter::assemble(&rules::zygote_table())
}

/// Returns the program of a sandbox without features in the kernel's format, for processes that come from outside and load it themselves.
pub fn sandbox_filter_bytes() -> Vec<u8> {
    bytes_of(&sandbox_filter(KernelFeatures::default()))
}

/// A program in the kernel's format.
pub(crate) fn bytes_of(program: &[Instruction]) -> Vec<u8> {
    let bytes = |instruction: &Instruction| {
        let Instruction { code, jump_true, jump_false, operand } = *instruction;
        let ([code_low, code_high], operand) = (code.to_ne_bytes(), operand.to_ne_bytes());
        let [a, b, c, d] = operand;
        [code_low, code_high, jump_true, jump_false, a, b, c, d]
    };
    program.iter().flat_map(bytes).collect()
}
