//! Exceptions to the rules: none today. If one is unavoidable, add it here. `cargo xtask graph --check` requires these
//! lists to be exact, so a fixed exception must be removed, and none can be added unnoticed.

/// Crates above the line limit.
pub(crate) const LARGE: &[&str] = &[];

/// Cycles: the crate, and the modules in it.
pub(crate) const CYCLES: &[(&str, &[&str])] = &[];
