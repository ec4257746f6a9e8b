//! Packs saved memory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::chunks::{ChunkStore, for_each_chunk};
use super::index::{Index, PackedFile};
use super::users::Users;
use crate::saved::{FILES, IMAGES};

/// What became of saved memory that was to be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pack {
    Packed,
    /// Somebody uses it.
    InUse,
    /// It was packed before.
    AlreadyPacked,
}

pub(super) fn pack(chunks: &ChunkStore, users: &Users, memory: &Path) -> io::Result<Pack> {
    if users.is_used(memory) {
        return Ok(Pack::InUse);
    }
    let files = large_files(memory)?;
    if files.is_empty() {
        return Ok(Pack::AlreadyPacked);
    }
    // Some may be missing here, after an error while they were removed.
    let mut packed = Index::read(memory)?.map_or_else(Vec::new, |index| index.files);
    packed.retain(|file| !files.contains(&file.path));
    for file in files {
        packed.push(store(chunks, memory, file)?);
    }
    chunks.sync()?;
    let index = Index::new(packed);
    index.write(memory)?;
    match users.unless_used(memory, || remove_files(memory, &index)) {
        Some(removed) => removed.map(|()| Pack::Packed),
        None => Ok(Pack::InUse),
    }
}

/// The files with almost all of what is saved, by their paths below its directory.
fn large_files(memory: &Path) -> io::Result<Vec<PathBuf>> {
    let is_pages = |name: &str| name.starts_with("pages-") && name.ends_with(".img");
    let mut files = Vec::new();
    for entry in fs::read_dir(memory.join(IMAGES))? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(is_pages) {
            files.push(Path::new(IMAGES).join(name));
        }
    }
    if memory.join(FILES).exists() {
        files.push(PathBuf::from(FILES));
    }
    files.sort();
    Ok(files)
}

pub(super) fn size_of_files(memory: &Path) -> io::Result<u64> {
    large_files(memory)?.iter().map(|file| Ok(fs::metadata(memory.join(file))?.len())).sum()
}

fn store(chunks: &ChunkStore, memory: &Path, path: PathBuf) -> io::Result<PackedFile> {
    let file = File::open(memory.join(&path))?;
    let size = file.metadata()?.len();
    let mut names = Vec::new();
    for_each_chunk(file, |content| {
        names.push(chunks.keep(content)?);
        Ok(())
    })?;
    Ok(PackedFile { path, size, chunks: names })
}

/// Removes the files that can be made again.
pub(super) fn remove_files(memory: &Path, index: &Index) -> io::Result<()> {
    index.files.iter().try_for_each(|file| match fs::remove_file(memory.join(&file.path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    })
}
