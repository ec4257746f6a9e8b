//! The manifest of a built template: `<id>.json` next to the layers, written atomically.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use isopod_wire::build::BuiltTemplate;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The prefix of the ids of built templates. No other template has it.
pub(crate) const BUILT_PREFIX: &str = "tpl-";
/// Increased when older programs could not read it.
const FORMAT: u32 = 1;

/// Why a manifest is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("template {0:?} is not on this node")]
    Missing(String),
    #[error("could not {action} {path}")]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is damaged or of a later version")]
    Damaged { path: PathBuf },
}

impl ManifestError {
    /// For callers that remove layers and must know which of them templates need.
    pub(crate) fn into_io(self) -> io::Error {
        let kind = match &self {
            Self::File { source, .. } => source.kind(),
            Self::Missing(_) | Self::Damaged { .. } => io::ErrorKind::InvalidData,
        };
        let cause = std::error::Error::source(&self).map(|cause| format!(": {cause}")).unwrap_or_default();
        let advice = "end its sandboxes and remove it with isopod template rm, or use the isopod that built it";
        io::Error::new(kind, format!("cannot tell which layers a template needs: {self}{cause}; {advice}"))
    }
}

/// A built template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: u32,
    pub(crate) template: BuiltTemplate,
    /// Whether the host's own files are below its layers.
    pub(crate) on_host: bool,
    /// Whether its sandboxes have a code interpreter.
    pub(crate) has_interpreter: bool,
    /// Part of the cache keys of builds that start from it.
    pub(crate) chain: String,
    /// Instructions for builds that start from it.
    pub(crate) onbuild: Vec<String>,
    /// For images that it is exported as.
    #[serde(default, skip_serializing_if = "Container::is_empty")]
    pub(crate) container: Container,
    /// Who built it, as [`BuildSpec::cache_scope`](isopod_wire::build::BuildSpec::cache_scope) says.
    #[serde(default)]
    pub(crate) scope: Option<String>,
    /// Whether its layers may be another scope's. Earlier versions did not record it.
    #[serde(default = "yes")]
    pub(crate) has_others_layers: bool,
}

/// What an image says to those who run containers. It changes nothing in a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Container {
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) cmd: Option<Vec<String>>,
    /// Such as `3000/tcp`.
    pub(crate) ports: BTreeSet<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Container {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn yes() -> bool {
    true
}

impl Manifest {
    /// The id is a hash of everything except size, time and who built it.
    pub(crate) fn new(
        mut template: BuiltTemplate,
        on_host: bool,
        has_interpreter: bool,
        chain: String,
        onbuild: Vec<String>,
        container: Container,
    ) -> Self {
        let mut identity = serde_json::json!([
            FORMAT,
            template.layers,
            template.env,
            template.user,
            template.workdir,
            template.start_cmd,
            template.ready_cmd,
            template.limits,
            on_host,
            has_interpreter,
            onbuild,
        ]);
        // Templates of earlier versions have none, and keep their ids.
        if let (serde_json::Value::Array(parts), false) = (&mut identity, container.is_empty()) {
            parts.push(serde_json::json!([container.entrypoint, container.cmd, container.ports, container.labels]));
        }
        let hash = Sha256::digest(identity.to_string().as_bytes());
        template.id = format!("{BUILT_PREFIX}{}", hex::encode(&hash[..16]));
        let (scope, has_others_layers) = (None, false);
        Self { format: FORMAT, template, on_host, has_interpreter, chain, onbuild, container, scope, has_others_layers }
    }

    /// Records who built it.
    pub(crate) fn built_by(self, scope: Option<String>, has_others_layers: bool) -> Self {
        Self { scope, has_others_layers, ..self }
    }

    pub(crate) fn load(templates: &Path, id: &str) -> Result<Self, ManifestError> {
        if !is_id(id) {
            return Err(ManifestError::Missing(id.to_owned()));
        }
        let path = path_of(templates, id);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ManifestError::Missing(id.to_owned()));
            }
            other => other.map_err(|source| ManifestError::File { action: "read", path: path.clone(), source })?,
        };
        match serde_json::from_slice::<Self>(&text) {
            Ok(manifest) if manifest.format <= FORMAT && manifest.template.id == id => Ok(manifest),
            _ => Err(ManifestError::Damaged { path }),
        }
    }

    /// Writes the manifest. If it already exists, the earlier one stays, with its time.
    pub(crate) fn save(self, templates: &Path) -> Result<Self, ManifestError> {
        if let Ok(earlier) = Self::load(templates, &self.template.id) {
            return Ok(earlier);
        }
        let path = path_of(templates, &self.template.id);
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).expect("the kernel provides random numbers after boot");
        let temporary = templates.join(format!(".{}.{:08x}", self.template.id, u32::from_le_bytes(bytes)));
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| ManifestError::File { action, path, source }
        };
        let text = serde_json::to_vec(&self).map_err(|error| failed("write", &path)(error.into()))?;
        let write = || {
            let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&temporary);
            failed("write", &path)(error)
        })?;
        Ok(self)
    }

    /// All manifests. An unreadable one is an error, because its template may need any layer.
    pub(crate) fn load_all(templates: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(templates)? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            match Self::load(templates, id) {
                Ok(manifest) => found.push(manifest),
                // Another file, or it was removed in the meantime.
                Err(ManifestError::Missing(_)) => {}
                Err(error) => return Err(error.into_io()),
            }
        }
        Ok(found)
    }

    /// All readable manifests.
    pub(crate) fn list(templates: &Path) -> Vec<Self> {
        let names = fs::read_dir(templates).into_iter().flatten().flatten();
        let mut found: Vec<Self> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter_map(|name| Self::load(templates, name.strip_suffix(".json")?).ok())
            .collect();
        found.sort_by(|a, b| a.template.id.cmp(&b.template.id));
        found
    }

    pub(crate) fn remove(templates: &Path, id: &str) -> io::Result<()> {
        fs::remove_file(path_of(templates, id))
    }
}

fn is_id(text: &str) -> bool {
    let digits = text.strip_prefix(BUILT_PREFIX).unwrap_or_default();
    digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn path_of(templates: &Path, id: &str) -> PathBuf {
    templates.join(format!("{id}.json"))
}
