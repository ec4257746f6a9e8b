//! The crates of the workspace, from Cargo's metadata.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::modules::Modules;

/// One crate, without its tests, benches and examples.
#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// The crates of this workspace that it is built with, without those that only its tests use.
    pub(crate) uses: BTreeSet<String>,
    pub(crate) targets: Vec<Target>,
}

/// A compilation unit: a library, a program, a build script.
#[derive(Debug)]
pub(crate) struct Target {
    /// In Cargo's terms: `lib`, `bin`, `custom-build`.
    pub(crate) kind: String,
    pub(crate) modules: Modules,
}

impl Crate {
    pub(crate) fn lines(&self) -> usize {
        self.targets.iter().flat_map(|target| target.modules.lines.values()).sum()
    }

    pub(crate) fn files(&self) -> usize {
        self.targets.iter().map(|target| target.modules.files).sum()
    }
}

/// Returns all crates. Each comes after those it uses.
pub(crate) fn read_workspace() -> Result<Vec<Crate>, String> {
    let metadata = metadata()?;
    let top = Path::new(text(&metadata, "workspace_root")?);
    let mut crates =
        list(&metadata, "packages").map(|package| read_crate(package, top)).collect::<Result<Vec<_>, _>>()?;
    sort(&mut crates);
    Ok(crates)
}

fn metadata() -> Result<Value, String> {
    let mut command = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["metadata", "--no-deps", "--format-version", "1"]);
    let output = command.output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cannot parse the output of {command:?}: {error}"))
}

fn read_crate(package: &Value, top: &Path) -> Result<Crate, String> {
    // Only crates of this workspace have a path.
    let uses = list(package, "dependencies").filter(|used| used["path"].is_string() && used["kind"] != "dev");
    let uses = uses.map(|used| text(used, "name").map(str::to_owned)).collect::<Result<_, _>>()?;
    let targets = list(package, "targets").filter_map(|target| read_target(target, top).transpose());
    Ok(Crate { name: text(package, "name")?.to_owned(), uses, targets: targets.collect::<Result<_, _>>()? })
}

fn read_target(target: &Value, top: &Path) -> Result<Option<Target>, String> {
    let kind = target["kind"][0].as_str().unwrap_or_default();
    if ["test", "bench", "example"].contains(&kind) {
        return Ok(None);
    }
    let file = PathBuf::from(text(target, "src_path")?);
    let file = file.strip_prefix(top).map_err(|_| format!("{} is not in the workspace", file.display()))?;
    let modules = Modules::read(file, &|file| fs::read_to_string(top.join(file)).ok())?;
    Ok(Some(Target { kind: kind.to_owned(), modules }))
}

/// Sorts each crate after those it uses. This terminates, because Cargo refuses cycles.
fn sort(crates: &mut Vec<Crate>) {
    let mut sorted: Vec<Crate> = Vec::new();
    while !crates.is_empty() {
        let ready = |one: &Crate| one.uses.iter().all(|used| sorted.iter().any(|done| done.name == *used));
        let next = crates.iter().position(ready).unwrap_or(0);
        sorted.push(crates.remove(next));
    }
    *crates = sorted;
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, String> {
    value[name].as_str().ok_or_else(|| format!("cargo metadata has no {name}"))
}
