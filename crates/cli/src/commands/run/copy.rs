//! `-v`: files in before the command, and back after it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use isopod_client::guest::{EntryKind, Guest};

use super::super::transfer::{HostTree, download_file, download_tree, upload_file, upload_tree};
use crate::printable::printable;

/// One `-v`.
#[derive(Debug)]
pub(in crate::commands) struct Volume {
    host: PathBuf,
    inside: String,
    pub(in crate::commands) read_only: bool,
}

impl FromStr for Volume {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (paths, read_only) = match text.strip_suffix(":ro") {
            Some(paths) => (paths, true),
            None => (text.strip_suffix(":rw").unwrap_or(text), false),
        };
        match paths.rsplit_once(':') {
            Some((host, inside)) if !host.is_empty() && inside.starts_with('/') => {
                Ok(Self { host: host.into(), inside: inside.trim_end_matches('/').to_owned(), read_only })
            }
            _ => bail!("-v {text:?} is not HOST_PATH:/PATH/INSIDE[:ro]"),
        }
    }
}

impl Volume {
    /// Copies a file, or a directory with all that is in it. The path itself may be a link: the user has named it.
    pub(in crate::commands) async fn copy_in(&self, guest: &Guest) -> anyhow::Result<()> {
        let unreadable = || format!("could not read {}", self.host.display());
        if std::fs::metadata(&self.host).with_context(unreadable)?.is_dir() {
            let tree = HostTree::open(&self.host).with_context(unreadable)?;
            return upload_tree(guest, &tree, &self.inside).await;
        }
        upload_file(guest, File::open(&self.host).with_context(unreadable)?, &self.inside).await
    }

    /// Copies back what is there now.
    pub(in crate::commands) async fn copy_out(&self, guest: &Guest) -> anyhow::Result<()> {
        let Ok(entry) = guest.stat(&self.inside).await else { return Ok(()) };
        let unwritable = || format!("could not write {}", self.host.display());
        match entry.kind {
            _ if entry.symlink_target.is_some() => {
                say_error!("isopod: {} is a link and was not copied back", printable(&self.inside));
                Ok(())
            }
            EntryKind::Directory => {
                let tree = HostTree::ensure(&self.host).with_context(unwritable)?;
                download_tree(guest, &self.inside, &tree).await
            }
            EntryKind::File => {
                let name = self.host.file_name().with_context(unwritable)?;
                let parent = self.host.parent().unwrap_or(Path::new(""));
                let parent = HostTree::open(parent).with_context(unwritable)?;
                download_file(guest, &self.inside, &parent, Path::new(name)).await
            }
            _ => {
                say_error!("isopod: {} is no file any more and was not copied back", printable(&self.inside));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_read_as_people_write_them() {
        let volume: Volume = "./data:/workspace/data:ro".parse().unwrap();
        assert_eq!(
            (volume.host.as_path(), volume.inside.as_str(), volume.read_only),
            (Path::new("./data"), "/workspace/data", true)
        );
        for bad in ["", "data", ":/x", "data:relative", "/x:"] {
            assert!(bad.parse::<Volume>().is_err(), "{bad:?} was accepted");
        }
    }
}
