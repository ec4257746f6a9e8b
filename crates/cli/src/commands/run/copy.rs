//! `-v`: files in before the command, and back after it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use isopod_client::guest::{EntryKind, Guest};

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
    /// Copies a file, or a directory with all that is in it. Symbolic links are followed on this side.
    pub(in crate::commands) async fn copy_in(&self, guest: &Guest) -> anyhow::Result<()> {
        let mut todo = vec![(self.host.clone(), self.inside.clone())];
        while let Some((host, inside)) = todo.pop() {
            let unreadable = || format!("could not read {}", host.display());
            let metadata = tokio::fs::metadata(&host).await.with_context(unreadable)?;
            if metadata.is_file() {
                let bytes = tokio::fs::read(&host).await.with_context(unreadable)?;
                guest.write_file(&inside, bytes).await.with_context(|| format!("could not write {inside}"))?;
                continue;
            }
            // It may be there already.
            let _ = guest.make_dir(&inside).await;
            let mut entries = tokio::fs::read_dir(&host).await.with_context(unreadable)?;
            while let Some(entry) = entries.next_entry().await.with_context(unreadable)? {
                let name = entry.file_name();
                let name =
                    name.to_str().with_context(|| format!("the name of {} is not UTF-8", entry.path().display()))?;
                todo.push((entry.path(), format!("{inside}/{name}")));
            }
        }
        Ok(())
    }

    /// Copies back what is there now. Symbolic links are not followed: the sandbox chooses where they point.
    pub(in crate::commands) async fn copy_out(&self, guest: &Guest) -> anyhow::Result<()> {
        let mut todo = vec![(self.inside.clone(), self.host.clone())];
        while let Some((inside, host)) = todo.pop() {
            let Ok(entry) = guest.stat(&inside).await else { continue };
            match entry.kind {
                _ if entry.symlink_target.is_some() => eprintln!("isopod: {inside} is a link and was not copied back"),
                EntryKind::File => copy_file_out(guest, &inside, &host).await?,
                EntryKind::Directory => {
                    tokio::fs::create_dir_all(&host)
                        .await
                        .with_context(|| format!("could not make {}", host.display()))?;
                    for child in guest.list_dir(&inside, 1).await.with_context(|| format!("could not list {inside}"))? {
                        let name = checked_name(&child.name)?;
                        todo.push((format!("{inside}/{name}"), host.join(name)));
                    }
                }
                _ => eprintln!("isopod: {inside} is neither a file nor a directory and was not copied back"),
            }
        }
        Ok(())
    }
}

/// A name that the sandbox made up must not lead elsewhere.
fn checked_name(name: &str) -> anyhow::Result<&str> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        bail!("the sandbox gave the file name {name:?}");
    }
    Ok(name)
}

async fn copy_file_out(guest: &Guest, inside: &str, host: &Path) -> anyhow::Result<()> {
    let file = guest.read_file(inside).await.with_context(|| format!("could not read {inside}"))?;
    let bytes = file.collect().await.with_context(|| format!("could not read {inside}"))?;
    let unwritable = || format!("could not write {}", host.display());
    // Replaced as a whole, and never through a link that stands in its place.
    let temporary = host.with_file_name(format!(".isopod-{}", std::process::id()));
    tokio::fs::write(&temporary, bytes).await.with_context(unwritable)?;
    tokio::fs::rename(&temporary, host).await.with_context(unwritable)
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

    #[test]
    fn names_from_the_sandbox_cannot_leave_the_directory() {
        for bad in ["", ".", "..", "a/b", "a\0"] {
            assert!(checked_name(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(checked_name("line\nbreak").unwrap(), "line\nbreak");
    }
}
