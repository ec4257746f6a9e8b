//! The program that is packaged, and what it needs of a machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{cargo, output_of, run, target_directory};

/// The C library of Ubuntu 22.04, the oldest system that packages are for, is 2.35. The wheel's tag promises this version.
pub(super) const NEWEST_GLIBC: (u32, u32) = (2, 34);

/// The profile in the workspace's `Cargo.toml`. Cargo also names its output directory after it.
pub(super) const PROFILE: &str = "dist";

pub(super) fn build() -> Result<PathBuf, String> {
    run(&mut cargo(&["build", "--profile", PROFILE, "--package", "isopod"]))?;
    Ok(target_directory()?.join(PROFILE).join("isopod"))
}

/// Refuses a program that older systems cannot start.
pub(super) fn check_glibc(program: &Path) -> Result<(), String> {
    let symbols = output_of(Command::new("objdump").arg("-T").arg(program))?;
    match symbols.split(['(', ')', ' ']).filter_map(glibc_version).max() {
        Some(newest) if newest > NEWEST_GLIBC => {
            let ((major, minor), (allowed, wanted)) = (newest, NEWEST_GLIBC);
            Err(format!(
                "{} needs glibc {major}.{minor}; packages must run with {allowed}.{wanted}: build it on an older system",
                program.display()
            ))
        }
        Some(_) => Ok(()),
        None => Err(format!("{} names no version of glibc", program.display())),
    }
}

fn glibc_version(word: &str) -> Option<(u32, u32)> {
    let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(glibc_version("GLIBC_2.2.5"), Some((2, 2)));
        assert!(glibc_version("GLIBC_2.34") > glibc_version("GLIBC_2.4"));
        assert_eq!(glibc_version("GLIBC_PRIVATE"), None);
    }
}
