//! What this machine trusts, in one file.

use std::path::{Path, PathBuf};

/// Where systems keep the authorities that they trust.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The file of this system, if it has one.
pub(in crate::commands) fn system_bundle() -> Option<PathBuf> {
    SYSTEM_BUNDLES.iter().map(Path::new).find(|path| path.is_file()).map(Path::to_owned)
}
