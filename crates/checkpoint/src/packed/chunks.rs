//! Chunks: where they end, and the directory that keeps them, compressed and each once.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const PAGE: usize = 4096;
/// Shorter chunks would be too many files.
const MIN_PAGES: usize = 8;
/// Longer ones would share less.
const MAX_PAGES: usize = 128;
pub(super) const MAX_CHUNK: usize = MAX_PAGES * PAGE;
/// A chunk ends at one of 32 pages, on average.
const LAST_PAGE_MASK: u64 = 31;
/// Compresses about as fast as a disk writes. Higher levels take several times as long for a tenth less.
const LEVEL: i32 = 1;
/// The extension of a chunk that is being written.
const UNFINISHED: &str = "new";

/// The hash of what is in a chunk. There are millions of them in large stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct ChunkName([u8; 32]);

impl ChunkName {
    pub(super) fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }
}

impl TryFrom<String> for ChunkName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut hash = [0; 32];
        hex::decode_to_slice(&text, &mut hash).map_err(|_| "not the name of a chunk")?;
        Ok(Self(hash))
    }
}

impl From<ChunkName> for String {
    fn from(name: ChunkName) -> Self {
        hex::encode(name.0)
    }
}

/// Calls `with` for each chunk of a file. Where one ends depends on what is in its last page, so that files have chunks in
/// common although pages were added to one of them. Returns false if `with` ended it by returning that.
pub(super) fn for_each_chunk(mut file: impl Read, mut with: impl FnMut(&[u8]) -> io::Result<bool>) -> io::Result<bool> {
    let mut buffer = vec![0; MAX_CHUNK];
    let mut filled = 0;
    loop {
        filled += fill(&mut file, &mut buffer[filled..])?;
        if filled == 0 {
            return Ok(true);
        }
        let length = first_chunk(&buffer[..filled]);
        if !with(&buffer[..length])? {
            return Ok(false);
        }
        buffer.copy_within(length..filled, 0);
        filled -= length;
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The length of the first chunk of some bytes, all of which are left or as many as a chunk may have.
fn first_chunk(bytes: &[u8]) -> usize {
    let ends = |page: &[u8]| page.len() == PAGE && quick_hash(page) & LAST_PAGE_MASK == 0;
    let last = bytes.chunks(PAGE).enumerate().skip(MIN_PAGES - 1).find(|(_, page)| ends(page));
    last.map_or(bytes.len(), |(number, page)| number * PAGE + page.len())
}

/// FNV-1a by words. It only says where to cut.
fn quick_hash(page: &[u8]) -> u64 {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let words = page.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let hash = words.fold(START, |hash, word| (hash ^ word).wrapping_mul(PRIME));
    // The low bits of a product depend on the low bits of its factors only.
    hash >> 32
}

/// The directory of the chunks.
#[derive(Debug)]
pub(super) struct ChunkStore {
    directory: PathBuf,
}

impl ChunkStore {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub(super) fn exist(&self) -> bool {
        self.directory.exists()
    }

    /// Keeps a chunk.
    pub(super) fn keep(&self, content: &[u8]) -> io::Result<ChunkName> {
        let name = ChunkName::of(content);
        // One that was written right before a power cut may be damaged.
        if self.read(&name).is_err() {
            self.write(&name, content)?;
        }
        Ok(name)
    }

    fn write(&self, name: &ChunkName, content: &[u8]) -> io::Result<()> {
        let place = self.path_of(name);
        let unfinished = place.with_extension(UNFINISHED);
        private_directories().create(place.parent().unwrap_or(&self.directory))?;
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(&zstd::bulk::compress(content, LEVEL)?)?;
        fs::rename(unfinished, place)
    }

    /// # Errors If it is not there, or damaged.
    pub(super) fn read(&self, name: &ChunkName) -> io::Result<Vec<u8>> {
        let content = zstd::bulk::decompress(&fs::read(self.path_of(name))?, MAX_CHUNK)?;
        if ChunkName::of(&content) != *name {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a chunk of saved memory is damaged"));
        }
        Ok(content)
    }

    /// Opens the store before chunks are written, because only descriptors that were open before learn of an error while
    /// they are written to the disk.
    pub(super) fn open(&self) -> io::Result<OpenStore> {
        private_directories().create(&self.directory)?;
        Ok(OpenStore(File::open(&self.directory)?))
    }

    pub(super) fn remove_all_but(&self, names: &HashSet<ChunkName>) -> io::Result<()> {
        for directory in entries_of(&self.directory)? {
            for chunk in entries_of(&directory)? {
                let name = chunk.file_name().and_then(|name| ChunkName::try_from(name.to_str()?.to_owned()).ok());
                if !name.is_some_and(|name| names.contains(&name)) {
                    fs::remove_file(&chunk)?;
                }
            }
            // Fails if it has chunks.
            let _ = fs::remove_dir(directory);
        }
        let _ = fs::remove_dir(&self.directory);
        Ok(())
    }

    fn path_of(&self, name: &ChunkName) -> PathBuf {
        let name = String::from(*name);
        self.directory.join(&name[..2]).join(name)
    }
}

/// The store while chunks are written.
pub(super) struct OpenStore(File);

impl OpenStore {
    /// Waits until all chunks are on disk.
    pub(super) fn sync(self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(self.0)?)
    }
}

fn private_directories() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

fn entries_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
}
