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
pub(super) enum Pack {
    Packed,
    /// Somebody uses it, it is gone, or the node closes.
    NotNow,
    /// It was packed before.
    AlreadyPacked,
}

/// Files that nobody reads any more, in the directory of the memory.
const GONE: &str = ".gone";

/// Stops early when `goes_on` says so.
pub(super) fn pack(chunks: &ChunkStore, users: &Users, memory: &Path, goes_on: &dyn Fn() -> bool) -> io::Result<Pack> {
    if users.is_used(memory) {
        return Ok(Pack::NotNow);
    }
    let files = large_files(memory)?;
    if files.is_empty() {
        return Ok(Pack::AlreadyPacked);
    }
    // Some may be missing here, after an error while they were removed.
    let mut packed = Index::read(memory)?.map_or_else(Vec::new, |index| index.files);
    // One of another size was made again, and that was not finished. Its chunks are what it was.
    let files = keep_unfinished_out(memory, files, &packed)?;
    packed.retain(|file| !files.contains(&file.path));
    let goes_on = || goes_on() && !users.is_used(memory) && memory.exists();
    let store_open = chunks.open()?;
    for file in files {
        match store(chunks, memory, file, &goes_on)? {
            Some(stored) => packed.push(stored),
            None => return Ok(Pack::NotNow),
        }
    }
    store_open.sync()?;
    let index = Index::new(packed);
    index.write(memory)?;
    // Others wait for the table of users, so the files only get other names meanwhile.
    match users.unless_used(memory, || put_away(memory, &index)) {
        Some(put_away) => put_away.and_then(|()| remove_beginning(memory, GONE)).map(|()| Pack::Packed),
        None => Ok(Pack::NotNow),
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

/// Leaves out what has chunks and is not the file that they make.
fn keep_unfinished_out(memory: &Path, files: Vec<PathBuf>, packed: &[PackedFile]) -> io::Result<Vec<PathBuf>> {
    let mut whole = Vec::new();
    for path in files {
        let size = fs::metadata(memory.join(&path))?.len();
        if packed.iter().all(|file| file.path != path || file.size == size) {
            whole.push(path);
        }
    }
    Ok(whole)
}

/// How much may be written for saved memory: what it has chunks for takes no more space.
pub(super) fn size_of_new_files(memory: &Path) -> io::Result<u64> {
    let known = Index::read(memory)?.map_or_else(Vec::new, |index| index.files);
    let new = large_files(memory)?.into_iter().filter(|path| !known.iter().any(|file| file.path == *path));
    new.map(|file| Ok(fs::metadata(memory.join(file))?.len())).sum()
}

/// Returns `None` if it does not go on.
fn store(
    chunks: &ChunkStore,
    memory: &Path,
    path: PathBuf,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<Option<PackedFile>> {
    let file = File::open(memory.join(&path))?;
    let size = file.metadata()?.len();
    let mut names = Vec::new();
    let whole = for_each_chunk(file, |content| {
        let goes_on = goes_on();
        if goes_on {
            names.push(chunks.keep(content)?);
        }
        Ok(goes_on)
    })?;
    Ok(whole.then_some(PackedFile { path, size, chunks: names }))
}

/// Removes the files that can be made again, by another name at first.
pub(super) fn put_away(memory: &Path, index: &Index) -> io::Result<()> {
    let files = index.files.iter().enumerate();
    files.map(|(number, file)| (memory.join(&file.path), memory.join(format!("{GONE}-{number}")))).try_for_each(
        |(file, gone)| match fs::rename(file, gone) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    )
}

/// Removes what was put away, and what was not finished, of memory that nobody uses or makes again.
pub(super) fn remove_leftovers(memory: &Path) -> io::Result<()> {
    // All such names begin with a dot, and no others.
    remove_beginning(memory, ".")
}

fn remove_beginning(memory: &Path, prefix: &str) -> io::Result<()> {
    for entry in fs::read_dir(memory)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
