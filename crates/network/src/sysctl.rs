//! Kernel settings under `/proc/sys/net`. The kernel shows each thread the settings of the thread's network namespace,
//! so these functions act on the namespace that the caller has entered.

use std::io;
use std::path::{Path, PathBuf};

const ROOT: &str = "/proc/sys/net";

/// A setting could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot access the kernel setting {path}")]
pub struct SysctlError {
    path: PathBuf,
    source: io::Error,
}

pub(super) fn write(name: &str, value: &str) -> Result<(), SysctlError> {
    let path = Path::new(ROOT).join(name);
    std::fs::write(&path, value).map_err(|source| SysctlError { path, source })
}

/// Writes a setting. It is not an error if the kernel does not have it, for example without IPv6.
pub(super) fn write_if_present(name: &str, value: &str) -> Result<(), SysctlError> {
    match write(name, value) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether a boolean setting is on.
pub(super) fn is_on(name: &str) -> Result<bool, SysctlError> {
    let path = Path::new(ROOT).join(name);
    match std::fs::read_to_string(&path) {
        Ok(value) => Ok(value.trim() != "0"),
        Err(source) => Err(SysctlError { path, source }),
    }
}

/// Whether a boolean setting is on, or `None` if it does not exist, for example because its interface has just
/// disappeared.
pub(super) fn is_on_if_present(name: &str) -> Result<Option<bool>, SysctlError> {
    match is_on(name) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// The setting that lets packets from this interface be forwarded to another one.
pub(super) fn forwarding(interface: &str) -> String {
    format!("ipv4/conf/{interface}/forwarding")
}
