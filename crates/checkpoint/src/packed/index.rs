//! The list of the chunks that the files of packed memory are made of.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::chunks::ChunkName;

const NAME: &str = "packed.json";
const UNFINISHED: &str = ".packed.json.new";
/// Increased when older programs could not read it.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Index {
    version: u32,
    pub(super) files: Vec<PackedFile>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PackedFile {
    /// Its path below the directory of the memory.
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) chunks: Vec<ChunkName>,
}

pub(super) fn path_in(memory: &Path) -> PathBuf {
    memory.join(NAME)
}

impl Index {
    pub(super) fn new(files: Vec<PackedFile>) -> Self {
        Self { version: VERSION, files }
    }

    /// Returns `None` if the memory was never packed, or is gone.
    pub(super) fn read(memory: &Path) -> io::Result<Option<Self>> {
        let bytes = match fs::read(path_in(memory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let index: Self = serde_json::from_slice(&bytes)?;
        let stays_below = |file: &PackedFile| file.path.components().all(|part| matches!(part, Component::Normal(_)));
        if index.version > VERSION || !index.files.iter().all(stays_below) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "saved memory was packed by a later version"));
        }
        Ok(Some(index))
    }

    /// On disk when this returns.
    pub(super) fn write(&self, memory: &Path) -> io::Result<()> {
        let unfinished = memory.join(UNFINISHED);
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(&unfinished, path_in(memory))?;
        File::open(memory)?.sync_all()
    }

    pub(super) fn chunks(self) -> impl Iterator<Item = ChunkName> {
        self.files.into_iter().flat_map(|file| file.chunks)
    }
}
