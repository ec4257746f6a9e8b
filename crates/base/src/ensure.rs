//! Finds or builds the base of this host.
//!
//! A build goes to a temporary directory and is published by one rename, so a visible generation is always complete.
//! The next build removes what a crashed one left.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::error::BaseError;
use super::facts::{collect_facts, find_pip};
use super::fingerprint::{FORMAT, Identity, KnownKeys};
use super::generation::{
    Base, IsUsed, TEMPORARY, generation_id, lock_builds, open_generation, remove_leftovers, remove_tree, remove_unheld,
    write_marker,
};
use super::host::{Host, HostRoot};
use super::layer::{Layer, Meta};
use super::manifest::{Manifest, Masked};
use super::merged_root::MergedRoot;
use super::packages::withhold_packages;
use super::root_layer::{build_root, write_settings};
use super::usr_layer::{UsrPlan, build_usr, write_usr_settings};
use super::usr_scan::{Mounts, scan_usr};

/// How to build the base.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseOptions {
    /// The host tree that the base is made from.
    pub host: HostRoot,
    /// Copy `/usr` instead of using the host's as a live layer.
    pub frozen: bool,
}

/// How often a build is attempted if the host keeps changing in the meantime.
const ATTEMPTS: usize = 3;

/// Returns the base of this host in its current state. Builds it if it does not exist.
///
/// `guest_binary` becomes `/usr/bin/sudo` and must act as such when it is called by that name.
pub fn ensure_base(
    layers_dir: &Path,
    guest_binary: &[u8],
    options: &BaseOptions,
    is_used: IsUsed,
) -> Result<Base, BaseError> {
    let host = Host::open_root(&options.host)?;
    let identity = Identity::new(&host, guest_binary, options.frozen);
    let known = KnownKeys::of(layers_dir);
    if let Some(base) = find_known(layers_dir, &known, &identity) {
        return Ok(base);
    }
    make_layers_dir(layers_dir)?;
    let _building = lock_builds(layers_dir)?;
    remove_leftovers(layers_dir)?;
    for _ in 1..ATTEMPTS {
        if let Some(base) = find_or_build(layers_dir, &known, &identity, guest_binary, IfHostChanged::Discard, is_used)?
        {
            return Ok(base);
        }
        tracing::info!("the host changed while its base was built; trying again");
    }
    let last = find_or_build(layers_dir, &known, &identity, guest_binary, IfHostChanged::Accept, is_used)?;
    last.ok_or_else(|| BaseError::NoSuchGeneration(generation_id(&identity.fingerprint())))
}

/// The generation that [`ensure_base`] would return now. Callers use it to notice an upgrade of the host. It is cheap
/// as long as nothing has changed.
pub fn current_fingerprint(layers_dir: &Path, guest_binary: &[u8], options: &BaseOptions) -> Result<String, BaseError> {
    let host = Host::open_root(&options.host)?;
    let identity = Identity::new(&host, guest_binary, options.frozen);
    let known = KnownKeys::of(layers_dir);
    let stat_key = identity.stat_key();
    if let Some(fingerprint) = known.find(&stat_key) {
        return Ok(generation_id(&fingerprint));
    }
    let fingerprint = identity.fingerprint();
    if layers_dir.is_dir() && identity.stat_key() == stat_key {
        known.remember(&stat_key, &fingerprint);
    }
    Ok(generation_id(&fingerprint))
}

/// What to do with a base if the host changed during the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfHostChanged {
    /// Discard it, because it may mix both states.
    Discard,
    /// Use it. [`current_fingerprint`] will report a newer one.
    Accept,
}

/// Finds or builds the base of the host's current state. Returns `None` if the host changed in the meantime. The caller
/// holds the build lock.
fn find_or_build(
    layers_dir: &Path,
    known: &KnownKeys,
    identity: &Identity<'_>,
    applet: &[u8],
    if_host_changed: IfHostChanged,
    is_used: IsUsed,
) -> Result<Option<Base>, BaseError> {
    let stat_key = identity.stat_key();
    let fingerprint = identity.fingerprint();
    if let Some(base) = find_generation(layers_dir, &fingerprint, is_used)? {
        known.remember(&stat_key, &fingerprint);
        return Ok(Some(base));
    }
    let directory = build(layers_dir, &fingerprint, identity, applet)?;
    let is_settled = identity.stat_key() == stat_key;
    if !is_settled && if_host_changed == IfHostChanged::Discard {
        remove_tree(&directory)?;
        return Ok(None);
    }
    if is_settled {
        known.remember(&stat_key, &fingerprint);
    }
    publish(layers_dir, &directory, &fingerprint).map(Some)
}

/// Looks a base up by the sizes and times of the host's files, without reading their contents.
fn find_known(layers_dir: &Path, known: &KnownKeys, identity: &Identity<'_>) -> Option<Base> {
    let fingerprint = known.find(&identity.stat_key())?;
    open_generation(layers_dir, &generation_id(&fingerprint)).ok()
}

fn make_layers_dir(layers_dir: &Path) -> Result<(), BaseError> {
    // Layers contain set-uid programs, which only sandboxes may run.
    DirBuilder::new().recursive(true).mode(0o700).create(layers_dir).map_err(|source| BaseError::Store {
        action: "create",
        path: layers_dir.to_owned(),
        source,
    })
}

/// Opens an existing generation. An unreadable one is removed, unless sandboxes may still use it. The caller holds the
/// build lock.
fn find_generation(layers_dir: &Path, fingerprint: &str, is_used: IsUsed) -> Result<Option<Base>, BaseError> {
    let id = generation_id(fingerprint);
    match open_generation(layers_dir, &id) {
        Ok(base) => return Ok(Some(base)),
        Err(BaseError::NoSuchGeneration(_)) if !layers_dir.join(&id).exists() => return Ok(None),
        Err(error) => tracing::warn!(generation = id, %error, "rebuilding a damaged base"),
    }
    remove_unheld(layers_dir, &id, is_used)?;
    Ok(None)
}

/// Builds a generation in a temporary directory and returns that directory.
fn build(layers_dir: &Path, fingerprint: &str, identity: &Identity<'_>, applet: &[u8]) -> Result<PathBuf, BaseError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BaseError::NotRoot);
    }
    let began = Instant::now();
    let directory = layers_dir.join(format!("{TEMPORARY}{}", generation_id(fingerprint)));
    let made = DirBuilder::new().mode(0o700).create(&directory);
    made.map_err(|source| BaseError::Store { action: "create", path: directory.clone(), source })?;
    let built = fill(&directory, fingerprint, identity, applet);
    if let Err(error) = built {
        // The first error is the one to report.
        let _ = remove_tree(&directory);
        return Err(error);
    }
    tracing::info!(generation = generation_id(fingerprint), elapsed = ?began.elapsed(), "built a base from the host");
    Ok(directory)
}

fn fill(directory: &Path, fingerprint: &str, identity: &Identity<'_>, applet: &[u8]) -> Result<(), BaseError> {
    let host = identity.host;
    let (root_path, usr_path) = (directory.join("root"), directory.join("usr"));
    let root = Layer::create(&root_path, Meta::root(0o755))?;
    let usr = Layer::create(&usr_path, Meta::root(0o755))?;
    let skipped = build_root(host, &root)?;
    let began = Instant::now();
    let scan = scan_usr(host, if identity.frozen { Mounts::Enter } else { Mounts::Hide })?;
    tracing::debug!(entries = scan.entries, elapsed = ?began.elapsed(), "scanned the host's /usr");
    let pip = find_pip(host);
    build_usr(host, &usr, &UsrPlan { scan: &scan, frozen: identity.frozen, pip: &pip, applet })?;
    let host_usr = (!identity.frozen).then(|| host.path().join("usr"));
    let merged = MergedRoot { root: &root_path, usr: &usr_path, host_usr: host_usr.as_deref() };
    write_settings(host, &root, &merged)?;
    write_usr_settings(host, &usr, &merged)?;
    let withheld = withhold_packages(host, &root)?;
    let facts = collect_facts(host, &scan, &pip, withheld);
    let masked = scan.masked.iter().map(|(path, why)| Masked { path: path.as_path().into(), why: *why }).collect();
    let fingerprint = fingerprint.to_owned();
    Manifest { format: FORMAT, fingerprint, host_usr, facts, skipped, masked }.write(directory)?;
    write_marker(directory)?;
    root.sync()
}

/// Gives a finished build its final name.
fn publish(layers_dir: &Path, directory: &Path, fingerprint: &str) -> Result<Base, BaseError> {
    let id = generation_id(fingerprint);
    let path = layers_dir.join(&id);
    std::fs::rename(directory, &path).map_err(|source| BaseError::Store { action: "publish", path, source })?;
    open_generation(layers_dir, &id)
}
