//! One base for the state directories of all tests, because building one scans the host's `/usr` and syncs a disk.
//!
//! The node accepts a base only if it has the fingerprint of the host, so a copy that is out of date does no harm.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use isopod_node::base::{BaseOptions, ensure_base, list_generations, remove_generation};
use isopod_node::guest_program_bytes;

/// The file of a generation that processes lock. Each copy needs its own.
const MARKER: &str = "in-use";
/// What the node knows about the host, so that it has to read little of it again.
const KEYS: &str = "base-keys.json";

/// Gives a new state directory the base of this host.
pub(crate) fn share_base(cache: &Path, state: &Path) -> Result<()> {
    let shared = cache.join("test-bases/layers");
    fs::create_dir_all(&shared).with_context(|| format!("create {}", shared.display()))?;
    // Held until it is copied, so that no other test removes it.
    let base = ensure_base(&shared, guest_program_bytes(), &BaseOptions::default())?;
    remove_others(&shared, &base.generation);
    let layers = state.join("layers");
    DirBuilder::new().mode(0o700).create(&layers).with_context(|| format!("create {}", layers.display()))?;
    copy_generation(&shared.join(&base.generation), &layers.join(&base.generation))?;
    fs::copy(shared.join(KEYS), layers.join(KEYS)).with_context(|| format!("copy {KEYS}"))?;
    Ok(())
}

/// Removes the bases of earlier states of the host. Those that another test copies right now stay.
fn remove_others(shared: &Path, current: &str) {
    for generation in list_generations(shared).unwrap_or_default() {
        if generation.id != current && !generation.in_use {
            let _ = remove_generation(shared, &generation.id);
        }
    }
}

/// Links the files if both directories are on the same disk, since nobody writes to the files of a base.
fn copy_generation(from: &Path, to: &Path) -> Result<()> {
    if !copy_tree(from, to, &["-a", "--link"])? {
        let _ = fs::remove_dir_all(to);
        ensure!(copy_tree(from, to, &["-a"])?, "cannot copy {} to {}", from.display(), to.display());
    }
    let marker = to.join(MARKER);
    fs::remove_file(&marker).with_context(|| format!("remove {}", marker.display()))?;
    fs::write(&marker, "").with_context(|| format!("create {}", marker.display()))
}

fn copy_tree(from: &Path, to: &Path, options: &[&str]) -> Result<bool> {
    let done = Command::new("cp").args(options).arg(from).arg(to).output().context("start cp")?;
    Ok(done.status.success())
}
