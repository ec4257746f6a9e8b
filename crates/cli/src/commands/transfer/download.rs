//! From a sandbox to this machine. Links inside are not followed, for the sandbox chooses where they point, and nothing is
//! written through a link on this side. A file appears when it is complete.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use isopod_client::guest::{Entry, EntryKind, Guest};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{HostTree, checked_name};
use crate::printable::printable;

/// Copies all that is in a directory of the sandbox.
pub(in crate::commands) async fn download_tree(guest: &Guest, from: &str, to: &HostTree) -> anyhow::Result<()> {
    let mut todo = vec![(from.to_owned(), PathBuf::new())];
    let mut in_the_way = Vec::new();
    while let Some((from, below)) = todo.pop() {
        let path = if from.is_empty() { "/" } else { from.as_str() };
        for child in guest.list_dir(path, 1).await.with_context(|| format!("could not list {path}"))? {
            let name = checked_name(&child.name).context("the sandbox gave a name that cannot be used")?;
            let (inside, below) = (format!("{}/{name}", from.trim_end_matches('/')), below.join(name));
            match child.kind {
                _ if is_link(&child) => leave_out(&inside, "it is a link"),
                EntryKind::File => download_file(guest, &inside, to, &below).await?,
                EntryKind::Directory => match to.make_directory(&below) {
                    Ok(()) => todo.push((inside, below)),
                    // The rest need not suffer for it.
                    Err(error) => in_the_way.push(format!("{}: {error}", unwritable(to, &below))),
                },
                _ => leave_out(&inside, "it is neither a file nor a directory"),
            }
        }
    }
    match in_the_way.first() {
        None => Ok(()),
        Some(first) => {
            bail!("{} of the directories were not copied; the first: {}", in_the_way.len(), printable(first))
        }
    }
}

/// Copies one file to a name below a directory. A link that stands there stays if it leads to the same contents.
pub(in crate::commands) async fn download_file(
    guest: &Guest,
    from: &str,
    to: &HostTree,
    below: &Path,
) -> anyhow::Result<()> {
    let mut new = to.new_file(below).with_context(|| unwritable(to, below))?;
    let mut file = tokio::fs::File::from_std(new.file.take().context("it is open")?);
    download_stream(guest, from, &mut file).await?;
    if to.has_through_link(below, &new).with_context(|| unwritable(to, below))? {
        return Ok(());
    }
    new.keep().with_context(|| unwritable(to, below))
}

/// Copies one file, piece by piece.
pub(in crate::commands) async fn download_stream(
    guest: &Guest,
    from: &str,
    to: &mut (impl AsyncWrite + Unpin),
) -> anyhow::Result<()> {
    let unreadable = || format!("could not read {from}");
    let mut download = guest.read_file(from).await.with_context(unreadable)?;
    while let Some(piece) = download.next().await.with_context(unreadable)? {
        to.write_all(&piece).await.with_context(|| format!("could not write what was in {from}"))?;
    }
    to.flush().await.with_context(|| format!("could not write what was in {from}"))
}

fn is_link(entry: &Entry) -> bool {
    entry.symlink_target.is_some() || entry.kind == EntryKind::Symlink
}

fn leave_out(inside: &str, why: &str) {
    say_error!("isopod: {} was not copied: {why}", printable(inside));
}

fn unwritable(to: &HostTree, below: &Path) -> String {
    format!("could not write {}", to.shown(below).display())
}
