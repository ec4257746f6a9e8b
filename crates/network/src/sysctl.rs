//! Kernel settings under `/proc/sys/net`. The kernel shows each thread the settings of the network namespace that the
//! thread is in, so these reach whichever one the caller has entered.

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

/// Writes a setting.
pub(super) fn write(name: &str, value: &str) -> Result<(), SysctlError> {
    let path = Path::new(ROOT).join(name);
    std::fs::write(&path, value).map_err(|source| SysctlError { path, source })
}

/// Writes a setting that a kernel without that feature (IPv6, say) does not have, and then does not need.
pub(super) fn write_if_present(name: &str, value: &str) -> Result<(), SysctlError> {
    match write(name, value) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether a switch is on.
pub(super) fn is_on(name: &str) -> Result<bool, SysctlError> {
    let path = Path::new(ROOT).join(name);
    match std::fs::read_to_string(&path) {
        Ok(value) => Ok(value.trim() != "0"),
        Err(source) => Err(SysctlError { path, source }),
    }
}

/// Whether a switch is on; `None` when there is no such switch, as with an interface that has just gone.
pub(super) fn is_on_if_present(name: &str) -> Result<Option<bool>, SysctlError> {
    match is_on(name) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// The switch by which packets that come in on the interface may go on to another one.
pub(super) fn forwarding(interface: &str) -> String {
    format!("ipv4/conf/{interface}/forwarding")
}
