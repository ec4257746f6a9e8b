//! Reads and writes images as files: `docker save` archives and OCI layouts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::manifest::{Descriptor, Found, Index, Manifest, OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST, parse};
use crate::store::{Image, Store, StoreError};
use crate::unpack::{Bounds, Kind, UnpackError, decompress, unpack};
use crate::{Digest, Reference, ReferenceError};

/// Why an archive could not be imported or exported.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("could not read the archive")]
    Read(#[source] io::Error),
    /// The archive cannot be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// The file has another format.
    #[error("the archive is neither an OCI layout nor a docker save archive")]
    Unknown,
    /// A file is missing in the archive.
    #[error("the archive has no {0}")]
    Missing(String),
    /// A file in the archive is damaged.
    #[error("{0} in the archive is not valid")]
    Damaged(String),
    /// The image has no name, and the caller gave none.
    #[error("the image in the archive has no name; specify one")]
    NoName,
    /// The name of the image is not valid.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("could not write the archive")]
    Write(#[source] io::Error),
}

/// An entry in the `manifest.json` of a `docker save` archive.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The file by which an OCI layout is recognised.
pub(crate) const OCI_LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// Imports the images of an archive into the store. `scratch` is an empty directory in which to unpack it.
///
/// # Errors
/// If the archive is damaged, or the image has no name and the caller gave none.
pub fn import(
    store: &Store,
    archive: impl Read + Send,
    scratch: &Path,
    name: Option<&Reference>,
) -> Result<Vec<Reference>, ArchiveError> {
    let stream = decompress(archive).map_err(ArchiveError::Read)?;
    unpack(stream, scratch, Kind::Plain, Bounds::default())?;
    let _adding = store.adding()?;
    let files = Files { root: scratch };
    match (files.read("index.json"), files.read("manifest.json")) {
        (Ok(index), _) => import_layout(store, &files, &index, name),
        (Err(_), Ok(list)) => import_saved(store, &files, &list, name),
        _ => Err(ArchiveError::Unknown),
    }
}

fn import_layout(
    store: &Store,
    files: &Files<'_>,
    index: &[u8],
    name: Option<&Reference>,
) -> Result<Vec<Reference>, ArchiveError> {
    let index: Index = json("index.json", index)?;
    let mut names = Vec::new();
    for found in &index.manifests {
        let digest = import_manifest(store, files, &found.digest, true)?;
        let own = found.annotations.get("io.containerd.image.name").or_else(|| found.annotations.get(REF_NAME));
        // The annotation may be only a tag, which is not enough.
        let own = own.filter(|text| text.contains(['/', ':'])).map(|text| text.parse()).transpose()?;
        let name = name.cloned().or(own).ok_or(ArchiveError::NoName)?;
        store.tag(&name, &digest)?;
        names.push(name);
    }
    Ok(names)
}

fn import_manifest(
    store: &Store,
    files: &Files<'_>,
    digest: &Digest,
    may_be_index: bool,
) -> Result<Digest, ArchiveError> {
    let bytes = files.read(&blob_path(digest))?;
    if Digest::of(&bytes) != *digest {
        return Err(StoreError::Digest { wanted: digest.clone(), got: Digest::of(&bytes) }.into());
    }
    match parse(&bytes).map_err(|_| ArchiveError::Damaged(digest.to_string()))? {
        Found::Index(index) if may_be_index => {
            let own = index.own().ok_or_else(|| ArchiveError::Missing("image for this machine".to_owned()))?;
            import_manifest(store, files, &own.digest, false)
        }
        Found::Index(_) => Err(ArchiveError::Damaged(digest.to_string())),
        Found::Manifest(manifest) => {
            for part in std::iter::once(&manifest.config).chain(&manifest.layers) {
                let (got, _) = store.put_from(&mut files.open(&blob_path(&part.digest))?)?;
                if got != part.digest {
                    return Err(StoreError::Digest { wanted: part.digest.clone(), got }.into());
                }
            }
            Ok(store.put(&bytes)?)
        }
    }
}

fn import_saved(
    store: &Store,
    files: &Files<'_>,
    list: &[u8],
    name: Option<&Reference>,
) -> Result<Vec<Reference>, ArchiveError> {
    let saved: Vec<Saved> = json("manifest.json", list)?;
    let mut names = Vec::new();
    for image in saved {
        let describe = |path: &str, media_type: &str| -> Result<Descriptor, ArchiveError> {
            let (digest, size) = store.put_from(&mut files.open(path)?)?;
            let annotations = BTreeMap::new();
            Ok(Descriptor { media_type: media_type.to_owned(), digest, size, platform: None, annotations })
        };
        let config = describe(&image.config, OCI_CONFIG)?;
        let layers: Result<Vec<_>, _> = image.layers.iter().map(|path| describe(path, OCI_LAYER)).collect();
        let manifest = Manifest { schema_version: 2, media_type: OCI_MANIFEST.to_owned(), config, layers: layers? };
        let text = serde_json::to_vec(&manifest).map_err(|_| ArchiveError::Damaged("manifest.json".to_owned()))?;
        let digest = store.put(&text)?;
        let own: Vec<Reference> =
            image.repo_tags.unwrap_or_default().iter().map(|tag| tag.parse()).collect::<Result<_, _>>()?;
        let given: Vec<Reference> = name.cloned().map_or(own, |name| vec![name]);
        if given.is_empty() {
            return Err(ArchiveError::NoName);
        }
        for name in given {
            store.tag(&name, &digest)?;
            names.push(name);
        }
    }
    Ok(names)
}

/// Writes an image as an archive that Docker, Podman and others can read: an OCI layout with Docker's `manifest.json`.
///
/// # Errors
/// If a part is missing or the archive cannot be written.
pub fn export(store: &Store, image: &Image, name: &Reference, out: impl Write) -> Result<(), ArchiveError> {
    let mut archive = tar::Builder::new(out);
    let mut add = |path: &str, bytes: &[u8]| -> Result<(), ArchiveError> {
        let mut header = plain_header(bytes.len() as u64);
        archive.append_data(&mut header, path, bytes).map_err(ArchiveError::Write)
    };
    let manifest = store.text(&image.manifest_digest)?;
    let own = Descriptor {
        media_type: OCI_MANIFEST.to_owned(),
        digest: image.manifest_digest.clone(),
        size: manifest.len() as u64,
        platform: None,
        annotations: BTreeMap::new(),
    };
    let index = index_of(name, own);
    let saved = saved_as(name, &image.manifest.config, &image.manifest.layers);
    let text = |value: Result<Vec<u8>, serde_json::Error>| value.map_err(|error| ArchiveError::Write(error.into()));
    add("oci-layout", OCI_LAYOUT)?;
    add("index.json", &text(serde_json::to_vec(&index))?)?;
    add("manifest.json", &text(serde_json::to_vec(&[saved]))?)?;
    add(&blob_path(&image.manifest_digest), &manifest)?;
    let mut seen = std::collections::HashSet::new();
    for part in std::iter::once(&image.manifest.config).chain(&image.manifest.layers) {
        if !seen.insert(part.digest.clone()) {
            continue;
        }
        let blob = store.blob(&part.digest).ok_or_else(|| StoreError::Missing(part.digest.to_string()))?;
        let file = File::open(&blob).map_err(ArchiveError::Read)?;
        let mut header = plain_header(file.metadata().map_err(ArchiveError::Read)?.len());
        archive.append_data(&mut header, blob_path(&part.digest), file).map_err(ArchiveError::Write)?;
    }
    archive.finish().map_err(ArchiveError::Write)
}

/// The index of an archive with one image.
pub(crate) fn index_of(name: &Reference, manifest: Descriptor) -> Index {
    let annotations = BTreeMap::from([
        (REF_NAME.to_owned(), name.to_string()),
        ("io.containerd.image.name".to_owned(), name.to_string()),
    ]);
    let own = Descriptor { annotations, ..manifest };
    Index { schema_version: 2, media_type: OCI_INDEX.to_owned(), manifests: vec![own] }
}

/// The same image as `docker load` wants it described.
pub(crate) fn saved_as(name: &Reference, config: &Descriptor, layers: &[Descriptor]) -> Saved {
    Saved {
        config: blob_path(&config.digest),
        repo_tags: Some(vec![name.to_string()]),
        layers: layers.iter().map(|layer| blob_path(&layer.digest)).collect(),
    }
}

pub(crate) fn plain_header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

pub(crate) fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.digits())
}

fn json<T: serde::de::DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, ArchiveError> {
    serde_json::from_slice(bytes).map_err(|_| ArchiveError::Damaged(name.to_owned()))
}

/// The unpacked archive. The kernel resolves all paths beneath its directory, so neither a path nor a link leads out.
struct Files<'a> {
    root: &'a Path,
}

impl Files<'_> {
    fn open(&self, path: &str) -> Result<File, ArchiveError> {
        use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
        let missing = || ArchiveError::Missing(path.to_owned());
        let root = rustix::fs::openat(CWD, self.root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        let root = root.map_err(|error| ArchiveError::Read(error.into()))?;
        // Older archives link to a layer that occurs twice, inside the archive.
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat2(&root, path, flags, Mode::empty(), resolve).map_err(|_| missing())?;
        let file = File::from(file);
        if file.metadata().is_ok_and(|meta| meta.is_file()) { Ok(file) } else { Err(missing()) }
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, ArchiveError> {
        let mut bytes = Vec::new();
        self.open(path)?.take(crate::store::MAX_TEXT).read_to_end(&mut bytes).map_err(ArchiveError::Read)?;
        Ok(bytes)
    }
}

/// A temporary directory for [`import`] that is removed on drop.
#[derive(Debug)]
pub struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    /// Creates one below a directory.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn make(parent: &Path) -> io::Result<Self> {
        let path = parent.join(format!("import-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
