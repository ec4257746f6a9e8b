//! What this program needs to be.

use crate::failure::Hint;

/// Sandboxes are made by root: id-mapped mounts and network namespaces of the host's own cannot be made by others yet.
pub(crate) fn require_root() -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Hint::new(
        "isopod makes sandboxes with the kernel's own means, and for that it must be root",
        "run it with sudo",
    ))
}
