//! The local store: blobs by their hash, and names that point to manifests.
//!
//! ```text
//! blobs/<64 digits>      complete and verified
//! partial/<64 digits>    incomplete; the download continues where it stopped
//! names/<64 digits>      {"reference", "manifest"}, named after the hash of the reference
//! lock                   shared while something is added, exclusive during a collection
//! private/<64 digits>/   a team's own store, for what its credentials opened or its builds fetched; `team` names it
//! ```
//!
//! A private store is separate because a digest is not a secret. Otherwise anyone who knows a digest could get the blob
//! from here, without asking the registry that protects it.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::manifest::{Config, Manifest};
use crate::{Digest, Reference};

/// The maximum size of manifests and configs, which are small texts.
pub(crate) const MAX_TEXT: u64 = 8 << 20;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file could not be read or written.
    #[error("could not {action} {path}")]
    File {
        /// What was tried: read, write, remove.
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The content does not match its digest.
    #[error("digest mismatch: expected {wanted}, but received {got}")]
    Digest {
        /// The expected digest.
        wanted: Digest,
        /// The digest of the received content.
        got: Digest,
    },
    /// Something is not in the store.
    #[error("{0} is not in the store")]
    Missing(String),
    /// A text is not valid JSON.
    #[error("the document {0} is not valid")]
    Json(Digest, #[source] serde_json::Error),
}

/// A store of images.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    /// The store that everyone may read, if this one is private.
    shared: Option<PathBuf>,
    /// Returns how much may still be written below a directory.
    room: Option<fn(&Path) -> u64>,
}

/// The store for what one team's credentials opened.
#[derive(Clone, Debug)]
pub struct PrivateStore {
    /// The team that owns it.
    pub team: String,
    pub store: Store,
}

/// An image in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The digest of the manifest, which is the image's name in the store.
    pub manifest_digest: Digest,
    pub manifest: Manifest,
    pub config: Config,
}

/// A name in the store and what it points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name as people write it.
    pub reference: String,
    /// The manifest that it points to.
    pub manifest: Digest,
    /// The size of all layers.
    pub bytes: u64,
}

/// What a collection has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// The number of blobs.
    pub blobs: u64,
    /// Their total size.
    pub bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Name {
    reference: String,
    manifest: Digest,
}

/// Held while something is added, so that a collection does not remove it before it has a name.
#[derive(Debug)]
pub struct Adding {
    _lock: File,
}

impl Store {
    /// Opens a store. Creates it if it does not exist.
    ///
    /// # Errors
    /// If its directories cannot be created.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        for part in ["blobs", "partial", "names"] {
            let path = root.join(part);
            fs::create_dir_all(&path).map_err(failed("make", &path))?;
        }
        Ok(Self { root: root.to_owned(), shared: None, room: None })
    }

    /// Limits the store to what `room` reports as free on the disk.
    #[must_use]
    pub fn with_room(self, room: fn(&Path) -> u64) -> Self {
        Self { room: Some(room), ..self }
    }

    /// How much may still be added.
    pub(crate) fn room(&self) -> u64 {
        self.room.map_or(u64::MAX, |room| room(&self.root))
    }

    /// The private store of a team. Creates it if it does not exist.
    ///
    /// # Errors
    /// If its directories cannot be created.
    pub fn private(&self, team: &str) -> Result<Self, StoreError> {
        let store = Self::open(&self.private_path(team))?;
        let path = store.root.join("team");
        fs::write(&path, team).map_err(failed("write", &path))?;
        Ok(Self { shared: Some(self.root.clone()), room: self.room, ..store })
    }

    /// The private store of a team, if it has one.
    pub fn find_private(&self, team: &str) -> Option<Self> {
        let root = self.private_path(team);
        root.join("team").is_file().then(|| Self { root, shared: Some(self.root.clone()), room: self.room })
    }

    /// All private stores, sorted by team.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn privates(&self) -> Result<Vec<PrivateStore>, StoreError> {
        let directory = self.root.join("private");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("read", &directory)(error)),
        };
        let mut stores = Vec::new();
        for entry in entries {
            let root = entry.map_err(failed("read", &directory))?.path();
            // Without this file, the team's first pull was interrupted before it stored anything.
            let Ok(team) = fs::read_to_string(root.join("team")) else { continue };
            stores.push(PrivateStore { team, store: Self { root, shared: Some(self.root.clone()), room: self.room } });
        }
        stores.sort_by(|a, b| a.team.cmp(&b.team));
        Ok(stores)
    }

    fn private_path(&self, team: &str) -> PathBuf {
        self.root.join("private").join(Digest::of(team.as_bytes()).digits())
    }

    /// Starts to add something.
    ///
    /// # Errors
    /// If the lock cannot be taken.
    pub fn adding(&self) -> Result<Adding, StoreError> {
        Ok(Adding { _lock: self.lock(FlockOperation::LockShared)? })
    }

    fn lock(&self, operation: FlockOperation) -> Result<File, StoreError> {
        let path = self.root.join("lock");
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed("open", &path))?;
        flock(&file, operation).map_err(|error| failed("lock", &path)(error.into()))?;
        Ok(file)
    }

    /// The path of a blob, if the store has it.
    pub fn blob(&self, digest: &Digest) -> Option<PathBuf> {
        Some(self.root.join("blobs").join(digest.digits())).filter(|path| path.is_file())
    }

    /// Whether a pull can skip a blob: it is here, or in the shared store, from which a private store links it.
    pub(crate) fn has(&self, digest: &Digest) -> bool {
        if self.blob(digest).is_some() {
            return true;
        }
        let Some(shared) = &self.shared else { return false };
        let own = self.root.join("blobs").join(digest.digits());
        fs::hard_link(shared.join("blobs").join(digest.digits()), own).is_ok()
    }

    /// The path for the incomplete download of a blob.
    pub(crate) fn partial(&self, digest: &Digest) -> PathBuf {
        self.root.join("partial").join(digest.digits())
    }

    /// Accepts a file from [`Store::partial`] if it matches its digest, and removes it if not. `stop` ends the check
    /// early.
    pub(crate) fn accept(&self, digest: &Digest, stop: &AtomicBool) -> Result<(), StoreError> {
        let path = self.partial(digest);
        let got = hash_file(&path, stop).map_err(failed("read", &path))?;
        if got != *digest {
            let _ = fs::remove_file(&path);
            return Err(StoreError::Digest { wanted: digest.clone(), got });
        }
        self.keep(&path, digest).map(drop)
    }

    /// Adds a small text.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<Digest, StoreError> {
        let digest = Digest::of(bytes);
        self.put_from(&mut io::Cursor::new(bytes)).map(|_| digest)
    }

    /// Adds the content of a stream.
    pub(crate) fn put_from(&self, stream: &mut dyn Read) -> Result<(Digest, u64), StoreError> {
        let path = self.nameless();
        let mut hash = Sha256::new();
        let mut bytes = 0;
        let copied = (|| {
            let mut file = File::create(&path)?;
            let mut buffer = vec![0; 1 << 17];
            loop {
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    length => {
                        hash.update(&buffer[..length]);
                        file.write_all(&buffer[..length])?;
                        bytes += length as u64;
                    }
                }
            }
        })();
        if let Err(error) = copied {
            let _ = fs::remove_file(&path);
            return Err(failed("write", &path)(error));
        }
        let digest = Digest::from_hash(hash.finalize().as_slice());
        self.keep(&path, &digest)?;
        Ok((digest, bytes))
    }

    /// A path for incomplete content whose hash is not yet known.
    pub(crate) fn nameless(&self) -> PathBuf {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.root.join("partial").join(format!("new-{}-{number}", std::process::id()))
    }

    /// Moves a file into the store under the hash that the caller has computed.
    pub(crate) fn keep(&self, path: &Path, digest: &Digest) -> Result<PathBuf, StoreError> {
        let target = self.root.join("blobs").join(digest.digits());
        fs::rename(path, &target).map_err(failed("keep", &target))?;
        Ok(target)
    }

    /// Reads a small text.
    pub(crate) fn text(&self, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        let path = self.blob(digest).ok_or_else(|| StoreError::Missing(digest.to_string()))?;
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_TEXT).read_to_end(&mut bytes));
        read.map_err(failed("read", &path))?;
        Ok(bytes)
    }

    /// An image by the digest of its manifest.
    ///
    /// # Errors
    /// If the manifest, the config or a layer is missing.
    pub fn image(&self, manifest_digest: &Digest) -> Result<Image, StoreError> {
        let json = |error| StoreError::Json(manifest_digest.clone(), error);
        let manifest: Manifest = serde_json::from_slice(&self.text(manifest_digest)?).map_err(json)?;
        let config: Config = serde_json::from_slice(&self.text(&manifest.config.digest)?)
            .map_err(|error| StoreError::Json(manifest.config.digest.clone(), error))?;
        if let Some(missing) = manifest.layers.iter().find(|layer| self.blob(&layer.digest).is_none()) {
            return Err(StoreError::Missing(missing.digest.to_string()));
        }
        Ok(Image { manifest_digest: manifest_digest.clone(), manifest, config })
    }

    /// The image of a name, if the store has all its parts.
    pub fn find(&self, reference: &Reference) -> Option<Image> {
        let by_digest = reference.digest().and_then(|digest| self.image(digest).ok());
        by_digest.or_else(|| self.image(&self.name(&reference.to_string())?.manifest).ok())
    }

    /// Gives a name to an image.
    ///
    /// # Errors
    /// If the name cannot be written.
    pub fn tag(&self, reference: &Reference, manifest: &Digest) -> Result<(), StoreError> {
        let name = Name { reference: reference.to_string(), manifest: manifest.clone() };
        let path = self.name_path(&name.reference);
        let text = serde_json::to_vec(&name).map_err(|error| StoreError::Json(manifest.clone(), error))?;
        let temporary = path.with_extension(format!("{}", std::process::id()));
        let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
        written.map_err(failed("write", &path))
    }

    /// Removes a name. Returns false if it does not exist.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn untag(&self, reference: &Reference) -> Result<bool, StoreError> {
        let path = self.name_path(&reference.to_string());
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("remove", &path)(error)),
        }
    }

    /// All names, sorted.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn list(&self) -> Result<Vec<Named>, StoreError> {
        let mut names: Vec<Named> = self.names()?.into_iter().map(|name| self.describe(name)).collect();
        names.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(names)
    }

    fn describe(&self, name: Name) -> Named {
        let parts = self.image(&name.manifest).map(|image| image.manifest);
        let bytes = parts.map_or(0, |manifest| manifest.layers.iter().map(|layer| layer.size).sum());
        Named { reference: name.reference, manifest: name.manifest, bytes }
    }

    /// Removes everything that no name refers to. It waits while something is being added, and adding waits for it.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn collect(&self) -> Result<Collected, StoreError> {
        let _alone = self.lock(FlockOperation::LockExclusive)?;
        let mut wanted = HashSet::new();
        for name in self.names()? {
            let image = match self.image(&name.manifest) {
                Ok(image) => image,
                // A part is missing or damaged, so the image is unusable. The next pull downloads it again.
                Err(StoreError::Missing(_) | StoreError::Json(..)) => continue,
                // The image may be intact, so do not remove its parts.
                Err(error) => return Err(error),
            };
            wanted.extend(image.manifest.layers.iter().map(|layer| layer.digest.digits().to_owned()));
            wanted.insert(image.manifest.config.digest.digits().to_owned());
            wanted.insert(name.manifest.digits().to_owned());
        }
        let mut collected = Collected::default();
        for part in ["blobs", "partial"] {
            let directory = self.root.join(part);
            for entry in fs::read_dir(&directory).map_err(failed("read", &directory))?.flatten() {
                if part == "blobs" && wanted.contains(&*entry.file_name().to_string_lossy()) {
                    continue;
                }
                collected.blobs += 1;
                collected.bytes += entry.metadata().map_or(0, |meta| meta.len());
                fs::remove_file(entry.path()).map_err(failed("remove", &entry.path()))?;
            }
        }
        Ok(collected)
    }

    fn names(&self) -> Result<Vec<Name>, StoreError> {
        let directory = self.root.join("names");
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed("read", &directory))? {
            let path = entry.map_err(failed("read", &directory))?.path();
            match fs::read(&path) {
                Ok(text) => names.extend(serde_json::from_slice::<Name>(&text).ok()),
                // The name was removed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("read", &path)(error)),
            }
        }
        Ok(names)
    }

    fn name(&self, reference: &str) -> Option<Name> {
        serde_json::from_slice(&fs::read(self.name_path(reference)).ok()?).ok()
    }

    fn name_path(&self, reference: &str) -> PathBuf {
        self.root.join("names").join(Digest::of(reference.as_bytes()).digits())
    }
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::File { action, path, source }
}

fn hash_file(path: &Path, stop: &AtomicBool) -> io::Result<Digest> {
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 17]);
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the pull was cancelled"));
        }
        match file.read(&mut buffer)? {
            0 => return Ok(Digest::from_hash(hash.finalize().as_slice())),
            length => hash.update(&buffer[..length]),
        }
    }
}
