//! From this machine into a sandbox.

use std::path::Path;

use anyhow::{Context, bail};
use isopod_client::guest::{EntryKind, Guest, Upload};

use super::super::transfer::{HostTree, checked_name, upload_file, upload_tree};

/// Copies a file, or a directory with all that is in it. The path itself may be a link: whoever asks has named it.
pub(super) async fn tree(guest: &Guest, from: &Path, to: &str) -> anyhow::Result<()> {
    let metadata = std::fs::metadata(from).with_context(|| unreadable(from))?;
    let to = match is_directory(guest, to).await? {
        true => format!("{}/{}", to.trim_end_matches('/'), name_of(from)?),
        false => to.trim_end_matches('/').to_owned(),
    };
    match metadata.is_dir() {
        true => upload_tree(guest, &HostTree::open(from).with_context(|| unreadable(from))?, &to).await,
        false => upload_file(guest, std::fs::File::open(from).with_context(|| unreadable(from))?, &to).await,
    }
}

/// What comes from standard input, as one file.
pub(super) async fn stdin(guest: &Guest, to: &str) -> anyhow::Result<()> {
    if to.ends_with('/') {
        bail!("{to:?} is no path of a file");
    }
    let contents = Upload::reader(tokio::io::stdin());
    guest.write_file(to, contents).await.with_context(|| format!("could not write {to}"))?;
    Ok(())
}

/// A slash at the end says that it shall be one.
async fn is_directory(guest: &Guest, path: &str) -> anyhow::Result<bool> {
    match guest.stat(path).await {
        Ok(entry) => Ok(entry.kind == EntryKind::Directory),
        Err(error) if error.is_not_found() => Ok(path.ends_with('/')),
        Err(error) => Err(error).with_context(|| format!("could not look at {path}")),
    }
}

/// `.` and `..` have a name too.
fn name_of(path: &Path) -> anyhow::Result<String> {
    let whole = std::fs::canonicalize(path).with_context(|| unreadable(path))?;
    let name = path.file_name().or_else(|| whole.file_name()).and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} has no name that could be used inside", path.display()))?;
    Ok(checked_name(name)?.to_owned())
}

fn unreadable(path: &Path) -> String {
    format!("could not read {}", path.display())
}
