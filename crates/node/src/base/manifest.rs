//! What is written beside the layers of a generation: what it was made from, what it offers and what was left out.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::BaseError;

/// The name of the file.
pub(super) const MANIFEST: &str = "manifest.json";

/// The record of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) fingerprint: String,
    /// Where the host's `/usr` is; None when it was copied.
    pub(super) host_usr: Option<PathBuf>,
    pub(super) facts: BaseFacts,
    /// Files that the allow-list names but that stayed outside.
    pub(super) skipped: Vec<Skipped>,
    /// Files of the host's `/usr` that are hidden.
    pub(super) masked: Vec<Masked>,
}

/// What a base offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseFacts {
    /// The distribution's name for itself.
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
    /// Things that agents expect and this host has not; package names as Debian has them.
    pub missing: Vec<String>,
    /// Packages of the host that count as not installed inside, because parts of them are not there.
    pub withheld_packages: Vec<String>,
    /// Set-uid and set-gid programs of the host that are seen inside, where they reach no further than the sandbox.
    pub set_id_programs: usize,
    /// Programs with file capabilities that are seen inside.
    pub capability_programs: usize,
    /// File systems that the host mounts below `/usr`; they are not seen inside.
    pub mounts_below_usr: Vec<PathBuf>,
    /// Files below `/usr` whose owner has no id inside; they belong to nobody there.
    pub foreign_owners: usize,
}

/// Which sudo a sandbox has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sudo {
    /// The guest binary under another name; the same everywhere.
    #[default]
    Applet,
    /// The host's own program.
    Host,
}

/// Where pip comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pip {
    /// There is none.
    #[default]
    None,
    /// The host has it.
    Host,
    /// It runs from the wheel that the host's `venv` module brings.
    Wheel,
}

/// A file that stayed outside although its place is on the allow-list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Skipped {
    pub(super) path: PathText,
    pub(super) why: SkipReason,
}

/// Why a file stayed outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SkipReason {
    /// Not everybody on the host may read it.
    NotPublic,
    /// A device, socket or fifo.
    Special,
    /// It holds a password, a token or a private key, or looks as if it did.
    LooksSecret,
    /// Its name is one that holds secrets.
    Name,
    /// It is far too large for what it claims to be.
    TooLarge,
    /// It cannot be read, or changed while it was read.
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
    /// Not everybody on the host may read it.
    NotPublic,
    /// Another file system is mounted there, so nobody looked at what is below it.
    Mount,
    /// It forbids `pip install` (PEP 668).
    PipGuard,
    /// A device, socket or fifo.
    Special,
}

/// A path for people to read; bytes that are no UTF-8 are replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PathText(pub(super) String);

impl From<&Path> for PathText {
    fn from(path: &Path) -> Self {
        Self(path.to_string_lossy().into_owned())
    }
}

impl Manifest {
    /// Reads the record of the generation in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self, BaseError> {
        let path = directory.join(MANIFEST);
        let text =
            std::fs::read(&path).map_err(|source| BaseError::Store { action: "read", path: path.clone(), source })?;
        serde_json::from_slice(&text).map_err(|source| BaseError::Manifest { path, source })
    }

    /// Writes it; the caller sees to it that it reaches the disk.
    pub(super) fn write(&self, directory: &Path) -> Result<(), BaseError> {
        let path = directory.join(MANIFEST);
        let text =
            serde_json::to_vec_pretty(self).map_err(|source| BaseError::Manifest { path: path.clone(), source })?;
        std::fs::write(&path, text).map_err(|source| BaseError::Store { action: "write", path, source })
    }
}
