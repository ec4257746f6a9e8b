//! The context of a build as an archive: the files of a directory that `.dockerignore` does not leave out.

use std::fs::File;
use std::io::{self, Seek};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use isopod_image::dockerfile::IgnoreRules;

/// A file, directory or link of the context.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    /// From the top of the context, with slashes.
    pub(super) name: String,
}

/// Packs a directory into a file that has no name: it is gone when it is closed. The Dockerfile is in it whatever is ignored.
pub(super) fn pack(dir: &Path, ignore: &IgnoreRules, dockerfile: Option<&str>) -> anyhow::Result<File> {
    let mut archive = tar::Builder::new(GzEncoder::new(nameless()?, Compression::fast()));
    archive.follow_symlinks(false);
    let mut entries = entries(dir, ignore)?;
    if let Some(dockerfile) = dockerfile
        && !entries.iter().any(|entry| entry.name == dockerfile)
    {
        entries.push(Entry { path: dir.join(dockerfile), name: dockerfile.to_owned() });
    }
    for entry in entries {
        archive
            .append_path_with_name(&entry.path, &entry.name)
            .with_context(|| format!("could not pack {}", entry.path.display()))?;
    }
    let mut file = archive.into_inner().and_then(GzEncoder::finish).context("could not pack the directory")?;
    file.rewind().context("could not pack the directory")?;
    Ok(file)
}

/// What belongs to the context. Sockets, pipes and devices do not.
pub(super) fn entries(dir: &Path, ignore: &IgnoreRules) -> anyhow::Result<Vec<Entry>> {
    let mut found = Vec::new();
    walk(dir, "", ignore, &mut found)?;
    Ok(found)
}

fn walk(dir: &Path, prefix: &str, ignore: &IgnoreRules, found: &mut Vec<Entry>) -> anyhow::Result<()> {
    let unreadable = || format!("could not read {}", dir.display());
    let mut children: Vec<_> = std::fs::read_dir(dir).and_then(Iterator::collect).with_context(unreadable)?;
    children.sort_by_key(std::fs::DirEntry::file_name);
    for child in children {
        let text = child.file_name();
        let text = text.to_str().with_context(|| format!("the name of {} is not UTF-8", child.path().display()))?;
        let name = if prefix.is_empty() { text.to_owned() } else { format!("{prefix}/{text}") };
        let kind = child.file_type().with_context(unreadable)?;
        let is_ignored = ignore.ignores(&name);
        if kind.is_dir() {
            if !is_ignored {
                found.push(Entry { path: child.path(), name: name.clone() });
            }
            if !is_ignored || ignore.has_exceptions() {
                walk(&child.path(), &name, ignore, found)?;
            }
        } else if !is_ignored
            && !kind.is_socket()
            && !kind.is_fifo()
            && !kind.is_block_device()
            && !kind.is_char_device()
        {
            found.push(Entry { path: child.path(), name });
        }
    }
    Ok(())
}

fn nameless() -> anyhow::Result<File> {
    let dir = std::env::temp_dir();
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::from).context("there is no randomness")?;
    let path = dir.join(format!("isopod-context-{:016x}", u64::from_ne_bytes(random)));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("could not write to {}", dir.display()))?;
    std::fs::remove_file(&path).with_context(|| format!("could not remove {}", path.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_archive_has_what_dockerignore_leaves() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["e2b.Dockerfile", "app/main.py", "app/keep.log", "app/other.log", "node_modules/x.js"] {
            std::fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let ignore = IgnoreRules::parse("node_modules\n**/*.log\n!app/keep.log\n*.Dockerfile\n").unwrap();
        let file = pack(dir.path(), &ignore, Some("e2b.Dockerfile")).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let names: BTreeSet<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().to_str().unwrap().trim_end_matches('/').to_owned())
            .collect();
        let wanted = ["app", "app/keep.log", "app/main.py", "e2b.Dockerfile", "link"];
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
    }
}
