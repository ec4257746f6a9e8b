//! The manifest of a generation: what it was made from, what it offers and what was left out.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::BaseError;

pub(super) const MANIFEST: &str = "manifest.json";

/// The manifest of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) fingerprint: String,
    /// The host's `/usr`. `None` if it was copied.
    pub(super) host_usr: Option<PathBuf>,
    pub(super) facts: BaseFacts,
    /// Files that match the allow-list but were left out.
    pub(super) skipped: Vec<Skipped>,
    /// Files of the host's `/usr` that are hidden.
    pub(super) masked: Vec<Masked>,
}

/// What a base offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseFacts {
    /// The distribution's own name.
    pub system: String,
    /// The version of `/usr/bin/python3`.
    pub python: Option<String>,
    /// Where pip comes from.
    pub pip: Pip,
    pub node: Option<String>,
    pub npm: bool,
    pub git: Option<String>,
    pub curl: Option<String>,
    pub sudo: Sudo,
    /// Programs that agents expect but this host lacks, by their Debian package names.
    pub missing: Vec<String>,
    /// Packages of the host that count as not installed inside, because parts of them are not there.
    pub withheld_packages: Vec<String>,
    /// Set-uid and set-gid programs of the host that are seen inside, where they reach no further than the sandbox.
    pub set_id_programs: usize,
    /// The number of visible programs with file capabilities.
    pub capability_programs: usize,
    /// File systems that the host mounts below `/usr`. They are not visible in a sandbox.
    pub mounts_below_usr: Vec<PathBuf>,
    /// The number of files below `/usr` whose owner has no id in a sandbox. They belong to `nobody` there.
    pub foreign_owners: usize,
}

/// Which sudo a sandbox has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sudo {
    /// The guest binary under another name. It is the same on every host.
    #[default]
    Applet,
    /// The host's own program.
    Host,
}

/// Where pip comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pip {
    #[default]
    None,
    /// The host's own.
    Host,
    /// It runs from the wheel that the host's `venv` module provides.
    Wheel,
}

/// A file that matches the allow-list but was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Skipped {
    pub(super) path: PathText,
    pub(super) why: SkipReason,
}

/// Why a file was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SkipReason {
    /// Not every user of the host may read it.
    NotPublic,
    /// A device, socket or fifo.
    Special,
    /// It holds a password, a token or a private key, or looks like it.
    LooksSecret,
    /// Its name is one that typically holds secrets.
    Name,
    /// It is far too large for a file of its kind.
    TooLarge,
    /// It could not be read, or it changed while it was read.
    Unreadable,
    /// It calls services of the host.
    HostHook,
}

/// A file of the host's `/usr` that is hidden.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Masked {
    pub(super) path: PathText,
    pub(super) why: MaskReason,
}

/// Why a file of `/usr` is hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum MaskReason {
    /// Not every user of the host may read it.
    NotPublic,
    /// Another file system is mounted there, and nothing below it was scanned.
    Mount,
    /// It forbids `pip install` (PEP 668).
    PipGuard,
    /// A device, socket or fifo.
    Special,
}

/// A path as readable text. Invalid UTF-8 is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PathText(pub(super) String);

impl From<&Path> for PathText {
    fn from(path: &Path) -> Self {
        Self(path.to_string_lossy().into_owned())
    }
}

impl Manifest {
    /// Reads the manifest of the generation in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self, BaseError> {
        let path = directory.join(MANIFEST);
        let text =
            std::fs::read(&path).map_err(|source| BaseError::Store { action: "read", path: path.clone(), source })?;
        serde_json::from_slice(&text).map_err(|source| BaseError::Manifest { path, source })
    }

    /// Writes the manifest. The caller must sync it to disk.
    pub(super) fn write(&self, directory: &Path) -> Result<(), BaseError> {
        let path = directory.join(MANIFEST);
        let text =
            serde_json::to_vec_pretty(self).map_err(|source| BaseError::Manifest { path: path.clone(), source })?;
        std::fs::write(&path, text).map_err(|source| BaseError::Store { action: "write", path, source })
    }
}
