//! From this machine into a sandbox. Links to files are followed; links to directories are not, for they may lead in
//! circles.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use isopod_client::guest::{EntryKind, Guest, Upload};

use super::place::checked_name;

/// Copies a file, or a directory with all that is in it.
pub(super) async fn tree(guest: &Guest, from: &Path, to: &str) -> anyhow::Result<()> {
    let metadata = tokio::fs::metadata(from).await.with_context(|| unreadable(from))?;
    let to = match is_directory(guest, to).await? {
        true => format!("{}/{}", to.trim_end_matches('/'), name_of(from).await?),
        false => to.trim_end_matches('/').to_owned(),
    };
    match metadata.is_dir() {
        true => directory(guest, from, &to).await,
        false => file(guest, from, &to).await,
    }
}

/// What comes from standard input, as one file.
pub(super) async fn stdin(guest: &Guest, to: &str) -> anyhow::Result<()> {
    write(guest, to, Upload::reader(tokio::io::stdin())).await
}

async fn directory(guest: &Guest, from: &Path, to: &str) -> anyhow::Result<()> {
    let mut todo: Vec<(PathBuf, String)> = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = todo.pop() {
        guest.make_dir(&to).await.with_context(|| format!("could not make {to}"))?;
        let mut entries = tokio::fs::read_dir(&from).await.with_context(|| unreadable(&from))?;
        while let Some(entry) = entries.next_entry().await.with_context(|| unreadable(&from))? {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_str().with_context(|| format!("the name of {} is not UTF-8", path.display()))?;
            let inside = format!("{to}/{name}");
            let is_link = entry.file_type().await.with_context(|| unreadable(&path))?.is_symlink();
            match tokio::fs::metadata(&path).await {
                Ok(metadata) if metadata.is_file() => file(guest, &path, &inside).await?,
                Ok(metadata) if metadata.is_dir() && !is_link => todo.push((path, inside)),
                Err(error) if !is_link => return Err(error).with_context(|| unreadable(&path)),
                _ => eprintln!("isopod: {} is no file and was not copied", path.display()),
            }
        }
    }
    Ok(())
}

async fn file(guest: &Guest, from: &Path, to: &str) -> anyhow::Result<()> {
    let file = tokio::fs::File::open(from).await.with_context(|| unreadable(from))?;
    write(guest, to, Upload::reader(file)).await
}

async fn write(guest: &Guest, to: &str, contents: Upload) -> anyhow::Result<()> {
    if to.is_empty() || to.ends_with('/') {
        bail!("{to:?} is no path of a file");
    }
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
async fn name_of(path: &Path) -> anyhow::Result<String> {
    let whole = tokio::fs::canonicalize(path).await.with_context(|| unreadable(path))?;
    let name = path.file_name().or_else(|| whole.file_name()).and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} has no name that could be used inside", path.display()))?;
    Ok(checked_name(name)?.to_owned())
}

fn unreadable(path: &Path) -> String {
    format!("could not read {}", path.display())
}
