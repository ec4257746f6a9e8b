//! Tests of the whole base: on a small host full of traps, and on the real one.

mod fake_host;
mod frozen_base;
mod generations;
mod package_database;
mod real_host;
mod traps;

/// For tests in which no sandbox uses a generation.
fn no_sandboxes(_: &std::path::Path, _: &str) -> std::io::Result<bool> {
    Ok(false)
}

/// Whether the tests run as root, which layers need because their files have many owners. Prints that a test is
/// skipped.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: needs root to make layers");
    }
    is_root
}
