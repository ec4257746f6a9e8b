//! Makes the files of packed memory again.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::chunks::ChunkStore;
use super::index::{Index, PackedFile};

/// Does nothing for memory that is not packed. Notes in any case that it is used now.
pub(super) fn unpack(chunks: &ChunkStore, memory: &Path) -> io::Result<()> {
    File::open(memory)?.set_modified(SystemTime::now())?;
    let Some(index) = Index::read(memory)? else { return Ok(()) };
    index.files.iter().filter(|file| !memory.join(&file.path).exists()).try_for_each(|file| make(chunks, memory, file))
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
