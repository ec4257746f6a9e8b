//! The system calls that programs in a sandbox may use.
//!
//! [`rules`] is the list, as data; [`filter`] turns it into the program that the kernel runs. The filter is loaded once,
//! on the sandbox's first process, and everything inside inherits it.

mod filter;
mod rules;

use isopod_wire::KernelFeatures;

use crate::sys::seccomp::Instruction;

/// The program for a sandbox on this architecture.
pub(crate) fn sandbox_filter(features: KernelFeatures) -> Vec<Instruction> {
    filter::assemble(&rules::table_with(features))
}

/// The program for a zygote: what a sandbox may do, and what it takes to enter one.
pub(crate) fn zygote_filter() -> Vec<Instruction> {
    filter::assemble(&rules::zygote_table())
}

/// The program of most sandboxes as the kernel reads it, for processes that come from outside and load it themselves.
pub fn sandbox_filter_bytes() -> Vec<u8> {
    let bytes = |instruction: &Instruction| {
        let Instruction { code, jump_true, jump_false, operand } = *instruction;
        let ([code_low, code_high], operand) = (code.to_ne_bytes(), operand.to_ne_bytes());
        let [a, b, c, d] = operand;
        [code_low, code_high, jump_true, jump_false, a, b, c, d]
    };
    sandbox_filter(KernelFeatures::default()).iter().flat_map(bytes).collect()
}
