//! The crates of the workspace and the declarations of their tests.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::declared::Declared;
use crate::program::{cargo, output_of};

/// A binary of this name is `tests/all/main.rs`. It counts as one binary for each file beside that one: linking it once
/// is much quicker than linking each of them.
pub(super) const JOINED: &str = "all";

pub(crate) struct Workspace {
    packages: Vec<Package>,
}

pub(crate) struct Package {
    /// The name of its directory: `control`.
    pub(crate) short: String,
    pub(crate) directory: PathBuf,
    pub(crate) declared: Declared,
    /// The files of [`JOINED`] are binaries too.
    binaries: Vec<String>,
    joined: Vec<String>,
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

    /// The target of cargo that a binary of a crate is built by, if there is such a binary.
    pub(crate) fn target_of<'a>(&self, short: &str, binary: &'a str) -> Option<&'a str> {
        let package = self.packages.iter().find(|package| package.short == short && package.has(binary))?;
        Some(if package.is_joined(binary) { JOINED } else { binary })
    }
}

impl Package {
    fn read(value: &Value) -> Result<Self, String> {
        let manifest = PathBuf::from(value["manifest_path"].as_str().ok_or("a package without a manifest")?);
        let directory = manifest.parent().ok_or("a manifest without a directory")?.to_owned();
        let short = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let targets = value["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut binaries: Vec<String> = targets.iter().filter_map(binary_name).collect();
        let wrong = |reason: String| format!("{}: {reason}", manifest.display());
        let has_joined = binaries.iter().any(|name| name == JOINED);
        let joined = if has_joined { files_beside_main(&directory).map_err(wrong)? } else { Vec::new() };
        binaries.retain(|name| name != JOINED);
        binaries.extend(joined.iter().cloned());
        let declared = Declared::parse(&value["metadata"]["isopod-tests"]).map_err(wrong)?;
        declared.check(&binaries).map_err(wrong)?;
        Ok(Self { short, directory, declared, binaries, joined })
    }

    fn has(&self, binary: &str) -> bool {
        self.binaries.iter().any(|name| name == binary)
    }

    /// Whether it is a part of [`JOINED`].
    pub(crate) fn is_joined(&self, binary: &str) -> bool {
        self.joined.iter().any(|name| name == binary)
    }

    /// What a binary that cargo built counts as.
    pub(crate) fn parts_of<'a>(&'a self, built: &'a str) -> Vec<&'a str> {
        if built == JOINED { self.joined.iter().map(String::as_str).collect() } else { vec![built] }
    }
}

/// The names of the files in `tests/all`. Helpers have directories.
fn files_beside_main(package: &Path) -> Result<Vec<String>, String> {
    let directory = package.join("tests").join(JOINED);
    let entries = directory.read_dir().map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut files: Vec<String> = names.filter_map(|name| name.strip_suffix(".rs").map(str::to_owned)).collect();
    files.retain(|name| name != "main");
    files.sort();
    Ok(files)
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
