//! The crates of the workspace and the declarations of their tests.

use std::path::PathBuf;

use serde_json::Value;

use super::declared::Declared;
use crate::program::{cargo, output_of};

pub(crate) struct Workspace {
    packages: Vec<Package>,
}

pub(crate) struct Package {
    /// The name of its directory: `control`.
    pub(crate) short: String,
    pub(crate) directory: PathBuf,
    pub(crate) declared: Declared,
    binaries: Vec<String>,
}

impl Workspace {
    pub(crate) fn read() -> Result<Self, String> {
        let text = output_of(&mut cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
        let metadata: Value = serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
        let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
        Ok(Self { packages: packages.iter().map(Package::read).collect::<Result<_, _>>()? })
    }

    /// Returns the package of a manifest.
    pub(crate) fn find(&self, directory: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.directory.as_os_str() == directory)
    }

    /// Whether a crate has a binary with that name.
    pub(crate) fn has_binary(&self, short: &str, binary: &str) -> bool {
        let mut crates = self.packages.iter().filter(|package| package.short == short);
        crates.any(|package| package.binaries.iter().any(|name| name == binary))
    }
}

impl Package {
    fn read(value: &Value) -> Result<Self, String> {
        let manifest = PathBuf::from(value["manifest_path"].as_str().ok_or("a package without a manifest")?);
        let directory = manifest.parent().ok_or("a manifest without a directory")?.to_owned();
        let short = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let targets = value["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        let binaries: Vec<String> = targets.iter().filter_map(binary_name).collect();
        let wrong = |reason: String| format!("{}: {reason}", manifest.display());
        let declared = Declared::parse(&value["metadata"]["isopod-tests"]).map_err(wrong)?;
        declared.check(&binaries).map_err(wrong)?;
        Ok(Self { short, directory, declared, binaries })
    }
}

/// Returns the name of a target's test binary, or `None` for examples and build scripts.
pub(crate) fn binary_name(target: &Value) -> Option<String> {
    match target["kind"].get(0)?.as_str()? {
        "lib" | "proc-macro" => Some("lib".to_owned()),
        "bin" => Some("bin".to_owned()),
        "test" => target["name"].as_str().map(str::to_owned),
        _ => None,
    }
}
