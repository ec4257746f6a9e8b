//! From a sandbox to this machine.

use std::path::Path;

use anyhow::{Context, bail};
use isopod_client::guest::{EntryKind, Guest};

use super::super::transfer::{HostTree, checked_name, download_file, download_stream, download_tree};

/// Copies a file, or a directory with all that is in it.
pub(super) async fn tree(guest: &Guest, from: &str, to: &Path) -> anyhow::Result<()> {
    let entry = guest.stat(from).await.with_context(|| format!("could not find {from}"))?;
    // A directory that the caller named takes it in, also through a link; one that the sandbox named is made new.
    let (parent, name) = match to.is_dir() || ends_with_slash(to) {
        true => (to, checked_name(&entry.name)?),
        false => split(to)?,
    };
    let unwritable = || format!("could not write {}", to.display());
    let parent = HostTree::ensure(parent).with_context(unwritable)?;
    match entry.kind {
        EntryKind::File => download_file(guest, &entry.path, &parent, Path::new(name)).await,
        EntryKind::Directory => {
            let below = parent.below(Path::new(name)).with_context(unwritable)?;
            download_tree(guest, &entry.path, &below).await
        }
        _ => bail!("{from} is neither a file nor a directory"),
    }
}

/// One file to standard output.
pub(super) async fn stdout(guest: &Guest, from: &str) -> anyhow::Result<()> {
    download_stream(guest, from, &mut tokio::io::stdout()).await
}

fn split(path: &Path) -> anyhow::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} has no name that a file can have", path.display()))?;
    Ok((path.parent().unwrap_or(Path::new("")), name))
}

fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/")
}
