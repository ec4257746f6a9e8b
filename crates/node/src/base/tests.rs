//! The base as a whole: on a small host full of traps, and on the real one.

mod fake_host;
mod frozen_base;
mod generations;
mod package_database;
mod real_host;
mod traps;

/// Layers have many owners, which only root can give. Says so when a test cannot run.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: needs root to make layers");
    }
    is_root
}
