//! Manifests, indexes and configs of images. Only the fields that Isopod uses.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Digest;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// The media types that we understand, for registries that offer several.
pub(crate) const ACCEPTED: [&str; 4] = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_INDEX];

/// Describes a blob in a store or registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    /// The hash of the blob, which is also its name.
    pub digest: Digest,
    /// The size in bytes.
    pub size: u64,
    /// The platform of an image in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A platform that an image is built for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// For example `amd64`.
    pub architecture: String,
    /// For example `linux`.
    pub os: String,
}

/// An image for one platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub(crate) schema_version: u32,
    #[serde(default)]
    pub(crate) media_type: String,
    /// Describes how the image is run.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
}

/// Images for several platforms, or the content of an OCI layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) manifests: Vec<Descriptor>,
}

impl Index {
    /// The image for this machine's platform, or the only image.
    pub(crate) fn own(&self) -> Option<&Descriptor> {
        let is_own = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture();
        let own = self.manifests.iter().find(|found| found.platform.as_ref().is_some_and(is_own));
        match &self.manifests[..] {
            [only] if only.platform.is_none() => Some(only),
            _ => own,
        }
    }
}

/// This machine's architecture, as images name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The part of an image that describes how it is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    #[serde(default)]
    pub config: RunConfig,
    /// The uncompressed layers.
    #[serde(default)]
    pub rootfs: RootFs,
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    /// When it was built, as RFC 3339 has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<String>,
}

/// How an image is run. Fields that are null count as missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// The environment variables, as `NAME=value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    /// The user that programs run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The program that a container runs.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "or_nothing")]
    pub entrypoint: Option<Vec<String>>,
    /// The program that a container runs, or arguments for the entrypoint.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "or_nothing")]
    pub cmd: Option<Vec<String>>,
    /// The ports that a container listens on, such as `3000/tcp`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "or_nothing")]
    pub exposed_ports: Option<BTreeMap<String, EmptyObject>>,
    /// The directories that a container has outside of its layers, such as `/var/lib/isopod`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "or_nothing")]
    pub volumes: Option<BTreeMap<String, EmptyObject>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "or_nothing")]
    pub labels: Option<BTreeMap<String, String>>,
    /// The signal that ends a container, such as `SIGTERM`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "or_nothing")]
    pub stop_signal: Option<String>,
    /// The shell for `RUN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
    /// Instructions for builds that start from this image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_build: Option<Vec<String>>,
}

/// Old images have other types here. Nothing that a build needs depends on these fields, so such values are ignored.
fn or_nothing<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// `{}`, which images have as the value of each port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyObject {}

/// The uncompressed layers of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootFs {
    /// The hashes of the layers, lowest first.
    pub diff_ids: Vec<Digest>,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

/// The two kinds of response from a registry.
pub(crate) enum Found {
    Manifest(Manifest),
    Index(Index),
}

/// Parses a document that a registry or an archive calls a manifest.
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
