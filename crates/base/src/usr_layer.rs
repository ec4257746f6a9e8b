//! The layer of `/usr`: it hides parts of the host's `/usr` and adds files to it. In a frozen base the layer is a full
//! copy, and nothing needs to be hidden.

use std::path::{Path, PathBuf};

use super::error::BaseError;
use super::facts::{PipSource, python_minor};
use super::frozen::copy_usr;
use super::host::Host;
use super::layer::{Layer, Meta, is_dir};
use super::merged_root::MergedRoot;
use super::root_layer::Reduce;
use super::secrets::holds_private_key;
use super::settings;
use super::usr_scan::UsrScan;
use crate::driver_files;

/// The inputs of the layer.
#[derive(Debug)]
pub(super) struct UsrPlan<'a> {
    pub(super) scan: &'a UsrScan,
    pub(super) frozen: bool,
    pub(super) pip: &'a PipSource,
    /// The program that is installed as `sudo`.
    pub(super) applet: &'a [u8],
}

pub(super) fn build_usr(host: &Host, layer: &Layer, plan: &UsrPlan<'_>) -> Result<(), BaseError> {
    if plan.frozen {
        copy_usr(host, layer, plan.scan)?;
    } else {
        hide_masked(host, layer, plan.scan)?;
    }
    make_local(host, layer)?;
    copy_local_certificates(host, layer)?;
    add_pip(host, layer, plan.pip)?;
    add_python_name(host, layer)?;
    add_file(host, layer, "bin", "sudo", plan.applet, Meta::root(0o4755))?;
    add_driver(host, layer)?;
    // Maintainer scripts run it before they start a daemon. Exit code 101 forbids the start.
    add_file(host, layer, "sbin", "policy-rc.d", b"#!/bin/sh\nexit 101\n", Meta::root(0o755))
}

/// Adds the interpreter's driver. The directory is our own, so nothing of the host is hidden.
fn add_driver(host: &Host, layer: &Layer) -> Result<(), BaseError> {
    for (name, contents) in driver_files::FILES {
        let path = Path::new(driver_files::DIRECTORY).join(name);
        let (Some(parent), Some(name)) = (path.parent().and_then(Path::to_str), path.file_name()) else { continue };
        add_file(host, layer, parent, &name.to_string_lossy(), contents, Meta::root(0o644))?;
    }
    Ok(())
}

/// Replaces configuration of package managers that the host keeps in `/usr` with reduced versions.
pub(super) fn write_usr_settings(host: &Host, layer: &Layer, merged: &MergedRoot<'_>) -> Result<(), BaseError> {
    let exists = |path: &str| merged.exists(path);
    let sources: [(&str, &str, Reduce); 2] = [("etc", "npmrc", settings::npmrc), ("", "pip.conf", settings::pip_conf)];
    for (directory, name, reduce) in sources {
        let path = Path::new("usr").join(directory).join(name);
        if let Some(text) = host.read_text(&path.to_string_lossy()) {
            let kept = reduce(&text, &exists);
            add_file(host, layer, directory, name, kept.as_bytes(), Meta::root(0o644))?;
        }
    }
    Ok(())
}

fn hide_masked(host: &Host, layer: &Layer, scan: &UsrScan) -> Result<(), BaseError> {
    for (path, _) in &scan.masked {
        mirror_dir(host, layer, path.parent().unwrap_or(Path::new("")))?;
        layer.whiteout(path)?;
    }
    Ok(())
}

/// Recreates a directory of the host in the layer. In a merged directory, the owner and mode of the upper one count.
fn mirror_dir(host: &Host, layer: &Layer, relative: &Path) -> Result<(), BaseError> {
    if relative.as_os_str().is_empty() || layer.stat(relative).is_some_and(|stat| is_dir(&stat)) {
        return Ok(());
    }
    mirror_dir(host, layer, relative.parent().unwrap_or(Path::new("")))?;
    let meta = host.stat(&Path::new("usr").join(relative)).map_or(Meta::root(0o755), |stat| Meta::of_host(&stat));
    layer.dir_at(relative, meta)
}

/// Adds a file to a directory of `/usr`. The directory may be a link (`sbin` is one on some hosts). A directory of that
/// name in our layer would hide everything the link leads to.
fn add_file(host: &Host, layer: &Layer, dir: &str, name: &str, contents: &[u8], meta: Meta) -> Result<(), BaseError> {
    let directory = real_dir(host, dir);
    mirror_dir(host, layer, &directory)?;
    layer.file_at(&directory.join(name), contents, meta)
}

fn real_dir(host: &Host, directory: &str) -> PathBuf {
    let resolved = host.resolve(&Path::new("usr").join(directory));
    let below_usr = resolved.and_then(|(path, _)| path.strip_prefix("usr").ok().map(Path::to_owned));
    below_usr.unwrap_or_else(|| PathBuf::from(directory))
}

const LOCAL: &[&str] = &["bin", "etc", "games", "include", "lib", "sbin", "share", "share/man", "src"];

/// Creates an empty `/usr/local`. The host's own does not concern sandboxes.
fn make_local(host: &Host, layer: &Layer) -> Result<(), BaseError> {
    layer.dir("local", Meta::root(0o755))?;
    layer.opaque("local")?;
    for name in LOCAL {
        layer.dir(&format!("local/{name}"), Meta::root(0o755))?;
    }
    layer.symlink("local/man", "share/man")?;
    if let Some(minor) = python_minor(host) {
        layer.dir(&format!("local/lib/python{minor}/dist-packages"), Meta::root(0o755))?;
    }
    Ok(())
}

/// Copies the certificates that the host's administrator trusts, the only files taken from `/usr/local`.
/// `/etc/ssl/certs` links to them, and without them `update-ca-certificates` in a sandbox would drop them.
fn copy_local_certificates(host: &Host, layer: &Layer) -> Result<(), BaseError> {
    let directory = Path::new("local/share/ca-certificates");
    layer.dir_at(directory, Meta::root(0o755))?;
    let host_directory = Path::new("usr").join(directory);
    for name in host.list(&host_directory) {
        let Some(contents) = host.read_public(&host_directory.join(&name), CERTIFICATE_LIMIT) else { continue };
        if is_certificate(&contents) {
            layer.file_at(&directory.join(&name), &contents, Meta::root(0o644))?;
        }
    }
    Ok(())
}

const CERTIFICATE_LIMIT: u64 = 4 << 20;

fn is_certificate(contents: &[u8]) -> bool {
    contents.trim_ascii_start().starts_with(b"-----BEGIN CERTIFICATE-----") && !holds_private_key(contents)
}

/// Makes pip available if the host has only the wheel that `venv` installs from. Python can run it from there.
fn add_pip(host: &Host, layer: &Layer, pip: &PipSource) -> Result<(), BaseError> {
    let (PipSource::Wheel(wheel), Some(minor)) = (pip, python_minor(host)) else { return Ok(()) };
    let path = format!("local/lib/python{minor}/dist-packages/pip-from-wheel.pth");
    layer.file(&path, format!("/{}\n", wheel.display()), Meta::root(0o644))?;
    for name in ["pip", "pip3"] {
        let script = "#!/bin/sh\nexec /usr/bin/python3 -m pip \"$@\"\n";
        layer.file(&format!("local/bin/{name}"), script, Meta::root(0o755))?;
    }
    Ok(())
}

/// Adds `python`, which people and agents type.
fn add_python_name(host: &Host, layer: &Layer) -> Result<(), BaseError> {
    let has = |name: &str| host.exists(&Path::new("usr/bin").join(name));
    if has("python3") && !has("python") {
        mirror_dir(host, layer, Path::new("bin"))?;
        layer.symlink("bin/python", "python3")?;
    }
    Ok(())
}
