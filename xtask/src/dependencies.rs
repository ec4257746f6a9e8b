//! The crates that are in the program, as cargo knows them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::program::{cargo, output_of};

/// What is packaged: the program, and the daemon that it carries for sandboxes, with their targets.
const PROGRAMS: [(&str, &str); 2] =
    [("isopod", "x86_64-unknown-linux-gnu"), ("isopod-guest", "x86_64-unknown-linux-musl")];

pub(crate) struct Dependencies {
    /// The output of `cargo metadata`.
    pub(crate) metadata: Value,
    /// The references of the crates in the program.
    built: BTreeSet<String>,
}

impl Dependencies {
    pub(crate) fn load() -> Result<Self, String> {
        // Without these, cargo would download the crates of all platforms.
        let platforms = PROGRAMS.iter().flat_map(|(_, target)| ["--filter-platform", target]);
        let metadata = output_of(cargo(&["metadata", "--format-version=1", "--locked"]).args(platforms))?;
        let metadata = serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
        let mut built = BTreeSet::new();
        for (program, target) in PROGRAMS {
            // The metadata has the features of all packages of the workspace together, and so what only tests use.
            let tree = ["tree", "--locked", "--edges=normal,build", "--prefix=none", "--format={p}"];
            let tree = output_of(cargo(&tree).args(["--package", program, "--target", target]))?;
            built.extend(references(&tree));
        }
        Ok(Self { metadata, built })
    }

    #[cfg(test)]
    pub(crate) fn of(metadata: Value, tree: &str) -> Self {
        Self { metadata, built: references(tree).collect() }
    }

    /// All packages of the workspace and their dependencies.
    pub(crate) fn packages(&self) -> impl Iterator<Item = &Value> {
        list(&self.metadata["packages"])
    }

    /// Whether the program has this package.
    pub(crate) fn is_built(&self, package: &Value) -> bool {
        self.built.contains(&reference(package))
    }
}

/// What `cargo tree` lists, as in `tar v0.4.44` or `isopod v0.1.0 (/src/crates/cli)`.
fn references(tree: &str) -> impl Iterator<Item = String> {
    let packages = tree.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.next()?.strip_prefix('v')?))
    });
    packages.map(|(name, version)| format!("pkg:cargo/{name}@{version}"))
}

/// The package URL of a crate.
pub(crate) fn reference(package: &Value) -> String {
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
