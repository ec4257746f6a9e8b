//! `SHA256SUMS`, as `sha256sum --check` reads it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

pub(super) fn write(directory: &Path, files: &[PathBuf]) -> Result<(), String> {
    let mut sums = String::new();
    for file in files {
        let contents = fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let _ = writeln!(sums, "{}  {name}", hex::encode(Sha256::digest(&contents)));
    }
    let path = directory.join("SHA256SUMS");
    fs::write(&path, sums).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
