//! Files between this machine and a sandbox, for `isopod cp` and `-v` of `isopod run` and `isopod repl`.
//!
//! Neither side may lead a copy astray. The sandbox chooses the names and links inside, and whoever wrote the directory on
//! this machine (a repository that was cloned, for example) chose the links there.

mod download;
mod host_tree;
mod upload;

use anyhow::bail;

pub(super) use download::{download_file, download_stream, download_tree};
pub(super) use host_tree::HostTree;
pub(super) use upload::{upload_file, upload_tree};

/// A name that the other side made up must not lead elsewhere.
pub(super) fn checked_name(name: &str) -> anyhow::Result<&str> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        bail!("{name:?} is no file name");
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_a_sandbox_cannot_leave_the_directory() {
        for bad in ["", ".", "..", "a/b", "a\0"] {
            assert!(checked_name(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(checked_name("line\nbreak").unwrap(), "line\nbreak");
    }
}
