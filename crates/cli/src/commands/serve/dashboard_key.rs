//! The key that encrypts the dashboard's cookies. It is in the state directory, so that browsers stay signed in when the
//! server restarts.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use isopod_dashboard::SealKey;

const FILE: &str = "dashboard.key";
const LENGTH: usize = 32;

/// Reads the key, or creates it. Whoever deletes the file signs everybody out at the next start.
pub(super) fn dashboard_key(state: &Path) -> anyhow::Result<SealKey> {
    let path = state.join(FILE);
    let about = || format!("could not use {}", path.display());
    match fs::read(&path) {
        // Anything else was not written to the end.
        Ok(bytes) => match <[u8; LENGTH]>::try_from(bytes) {
            Ok(secret) => Ok(SealKey::of(&secret)),
            Err(_) => {
                fs::remove_file(&path).with_context(about)?;
                create(&path).with_context(about)
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound => create(&path).with_context(about),
        Err(error) => Err(error).with_context(about),
    }
}

fn create(path: &Path) -> anyhow::Result<SealKey> {
    let mut secret = [0; LENGTH];
    getrandom::fill(&mut secret)?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(&secret)?;
    Ok(SealKey::of(&secret))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_key_is_made_once_for_nobody_else_and_a_broken_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        dashboard_key(dir.path()).unwrap();
        let first = fs::read(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        dashboard_key(dir.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first);
        fs::write(&path, b"short").unwrap();
        dashboard_key(dir.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), LENGTH);
    }
}
