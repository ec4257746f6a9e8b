//! Makes the files of packed memory again.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use rustix::fs::statvfs;

use super::chunks::ChunkStore;
use super::index::{Index, PackedFile};

/// What is left free on the disk, which also has the records.
const SPACE_LEFT: u64 = 256 << 20;

/// Does nothing for memory that is not packed. Notes in any case that it is used now.
pub(super) fn unpack(chunks: &ChunkStore, memory: &Path) -> io::Result<()> {
    // If the disk is too full for that, it is packed again sooner.
    let _ = File::open(memory)?.set_modified(SystemTime::now());
    let Some(index) = Index::read(memory)? else { return Ok(()) };
    let missing: Vec<&PackedFile> = index.files.iter().filter(|file| !is_there(memory, file)).collect();
    check_space(memory, missing.iter().map(|file| file.size).sum())?;
    missing.into_iter().try_for_each(|file| make(chunks, memory, file))
}

fn is_there(memory: &Path, packed: &PackedFile) -> bool {
    fs::metadata(memory.join(&packed.path)).is_ok_and(|found| found.len() == packed.size)
}

fn check_space(memory: &Path, wanted: u64) -> io::Result<()> {
    if wanted == 0 || free_space(memory)? >= wanted.saturating_add(SPACE_LEFT) {
        return Ok(());
    }
    let reason = format!("there is no space for {} MiB on the state directory's disk", wanted >> 20);
    Err(io::Error::new(io::ErrorKind::StorageFull, reason))
}

pub(super) fn free_space(directory: &Path) -> io::Result<u64> {
    let disk = statvfs(directory)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// A file has its name when it is complete, because a caller may be gone and another one begin anew.
fn make(chunks: &ChunkStore, memory: &Path, packed: &PackedFile) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let unfinished = memory.join(format!(".unpacked-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let made = write(chunks, &unfinished, packed).and_then(|()| fs::rename(&unfinished, memory.join(&packed.path)));
    if made.is_err() {
        // Perhaps the disk is full. What is left otherwise goes with the memory.
        let _ = fs::remove_file(&unfinished);
    }
    made
}

fn write(chunks: &ChunkStore, path: &Path, packed: &PackedFile) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    for name in &packed.chunks {
        file.write_all(&chunks.read(name)?)?;
    }
    if file.metadata()?.len() == packed.size {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "packed memory is incomplete"))
    }
}
