//! From a sandbox to this machine. Links are not followed: the sandbox chooses where they point. A file appears when it
//! is complete, and nothing is written through a link that stands in its place.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use isopod_client::guest::{Entry, EntryKind, Guest};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::place::checked_name;

/// Copies a file, or a directory with all that is in it.
pub(super) async fn tree(guest: &Guest, from: &str, to: &Path) -> anyhow::Result<()> {
    let entry = guest.stat(from).await.with_context(|| format!("could not find {from}"))?;
    let to = match to.is_dir() || ends_with_slash(to) {
        true => to.join(checked_name(&entry.name)?),
        false => to.to_owned(),
    };
    match entry.kind {
        EntryKind::File => file(guest, &entry.path, &to).await,
        EntryKind::Directory => directory(guest, entry.path, to).await,
        _ => bail!("{from} is neither a file nor a directory"),
    }
}

/// One file to standard output.
pub(super) async fn stdout(guest: &Guest, from: &str) -> anyhow::Result<()> {
    contents(guest, from, &mut tokio::io::stdout()).await
}

async fn directory(guest: &Guest, from: String, to: PathBuf) -> anyhow::Result<()> {
    let mut todo = vec![(from, to)];
    while let Some((from, to)) = todo.pop() {
        make_directory(&to).await?;
        for child in guest.list_dir(&from, 1).await.with_context(|| format!("could not list {from}"))? {
            let name = checked_name(&child.name).context("the sandbox gave a name that cannot be used")?;
            let (inside, here) = (format!("{}/{name}", from.trim_end_matches('/')), to.join(name));
            match child.kind {
                _ if is_link(&child) => eprintln!("isopod: {inside:?} is a link and was not copied"),
                EntryKind::File => file(guest, &inside, &here).await?,
                EntryKind::Directory => todo.push((inside, here)),
                _ => eprintln!("isopod: {inside:?} is neither a file nor a directory and was not copied"),
            }
        }
    }
    Ok(())
}

fn is_link(entry: &Entry) -> bool {
    entry.symlink_target.is_some() || entry.kind == EntryKind::Symlink
}

async fn make_directory(path: &Path) -> anyhow::Result<()> {
    match tokio::fs::symlink_metadata(path).await {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => bail!("{} is there already and is no directory", path.display()),
        Err(_) => tokio::fs::create_dir_all(path).await.with_context(|| format!("could not make {}", path.display())),
    }
}

async fn file(guest: &Guest, from: &str, to: &Path) -> anyhow::Result<()> {
    let unwritable = || format!("could not write {}", to.display());
    let name = to.file_name().with_context(unwritable)?.to_string_lossy().into_owned();
    let partial = Partial(to.with_file_name(format!(".{:.100}.isopod-{}", name, std::process::id())));
    let mut options = tokio::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).open(&partial.0).await.with_context(unwritable)?;
    contents(guest, from, &mut file).await?;
    tokio::fs::rename(&partial.0, to).await.with_context(unwritable)
}

async fn contents(guest: &Guest, from: &str, to: &mut (impl AsyncWrite + Unpin)) -> anyhow::Result<()> {
    let unreadable = || format!("could not read {from}");
    let mut download = guest.read_file(from).await.with_context(unreadable)?;
    while let Some(piece) = download.next().await.with_context(unreadable)? {
        to.write_all(&piece).await.with_context(|| format!("could not write what was in {from}"))?;
    }
    to.flush().await.with_context(|| format!("could not write what was in {from}"))
}

/// Removes a file that did not become complete.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename there is nothing to remove.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/")
}
