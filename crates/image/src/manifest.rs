//! Manifests, indexes and configs of images, as far as they matter here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Digest;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// What we understand, for registries that have several forms.
pub(crate) const ACCEPTED: [&str; 4] = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_INDEX];

/// Something in a store or registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    #[serde(default)]
    pub media_type: String,
    /// Its name.
    pub digest: Digest,
    /// In bytes.
    pub size: u64,
    /// For which machine, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Notes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A kind of machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// `amd64`.
    pub architecture: String,
    /// `linux`.
    pub os: String,
}

/// An image for one kind of machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub(crate) schema_version: u32,
    #[serde(default)]
    pub(crate) media_type: String,
    /// How it is run.
    pub config: Descriptor,
    /// Lowest first.
    pub layers: Vec<Descriptor>,
}

/// Images for several kinds of machine, or the contents of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) manifests: Vec<Descriptor>,
}

impl Index {
    /// The one for this machine, or the only one.
    pub(crate) fn own(&self) -> Option<&Descriptor> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let is_own = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture;
        let own = self.manifests.iter().find(|found| found.platform.as_ref().is_some_and(is_own));
        match &self.manifests[..] {
            [only] if only.platform.is_none() => Some(only),
            _ => own,
        }
    }
}

/// The part of an image that says how it is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// For whom and how.
    #[serde(default)]
    pub config: RunConfig,
    /// Its layers without compression.
    #[serde(default)]
    pub rootfs: RootFs,
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
}

/// How an image is run. Fields that are null count as missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// `NAME=value`.
    pub env: Option<Vec<String>>,
    /// Whose name programs run under.
    pub user: Option<String>,
    /// Where.
    pub working_dir: Option<String>,
    /// The shell of RUN.
    pub shell: Option<Vec<String>>,
    /// Instructions for builds on it.
    pub on_build: Option<Vec<String>>,
}

/// The layers of an image without compression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootFs {
    /// Lowest first.
    pub diff_ids: Vec<Digest>,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

/// Either kind of answer of a registry.
pub(crate) enum Found {
    Manifest(Manifest),
    Index(Index),
}

/// Understands what a registry or archive calls a manifest.
pub(crate) fn parse(bytes: &[u8]) -> Result<Found, serde_json::Error> {
    #[derive(Deserialize)]
    struct Kind {
        manifests: Option<serde::de::IgnoredAny>,
    }
    match serde_json::from_slice::<Kind>(bytes)?.manifests {
        Some(_) => serde_json::from_slice(bytes).map(Found::Index),
        None => serde_json::from_slice(bytes).map(Found::Manifest),
    }
}
