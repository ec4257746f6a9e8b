//! How the Python packages of the code interpreter differ from E2B's.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use super::find_recipe;
use crate::StateRoot;
use crate::base::BaseFacts;

/// The template whose packages are meant.
const TEMPLATE: &str = "code-interpreter-v1";
/// Its list, as it comes with Isopod.
const LIST: &str = include_str!("../../recipes/code-interpreter-v1/packages.txt");

/// A package that is another than in E2B's code interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageDifference {
    pub name: String,
    /// The version that E2B has.
    pub wanted: String,
    /// The version in the template; `None` if it is not there.
    pub found: Option<String>,
}

impl fmt::Display for PackageDifference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Some(found) => write!(formatter, "{} {found} (E2B: {})", self.name, self.wanted),
            None => write!(formatter, "no {} (E2B: {})", self.name, self.wanted),
        }
    }
}

/// Compares the code interpreter that was built for this host with E2B's. `None` if it is not complete yet.
pub fn package_differences(state: &StateRoot, facts: &BaseFacts) -> Option<Vec<PackageDifference>> {
    let layers = find_recipe(TEMPLATE)?.layers(facts, state.path());
    let ids = std::iter::once(layers.core).chain(layers.more);
    let paths: Vec<_> = ids.map(|id| state.templates().join(id)).collect();
    let is_built = paths.iter().all(|layer| layer.is_dir());
    is_built.then(|| compare(LIST, &paths.iter().flat_map(|layer| installed(layer)).collect()))
}

fn compare(list: &str, installed: &BTreeMap<String, String>) -> Vec<PackageDifference> {
    let differs = |(name, wanted): (&str, &str)| {
        let found = installed.get(&normal_name(name)).cloned();
        let differs = found.as_deref() != Some(wanted);
        differs.then(|| PackageDifference { name: name.to_owned(), wanted: wanted.to_owned(), found })
    };
    exact_versions(list).filter_map(differs).collect()
}

/// The packages of a list that have one version and no other.
fn exact_versions(list: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = list.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.flat_map(str::split_whitespace).filter_map(|word| word.split_once("=="))
}

/// What pip has installed into a layer: names and versions, from the directories that it leaves.
fn installed(layer: &Path) -> BTreeMap<String, String> {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let mut found = BTreeMap::new();
    // The layer of `/usr` is a directory of that name.
    for libraries in ["usr/local/lib", "usr/lib"].map(|path| layer.join(path)) {
        for python in names(&libraries).iter().filter(|name| name.starts_with("python3")) {
            for packages in ["dist-packages", "site-packages"] {
                let directory = libraries.join(python).join(packages);
                found.extend(names(&directory).iter().filter_map(|name| read_name(name)));
            }
        }
    }
    found
}

/// `scikit_learn-1.6.1.dist-info` is version 1.6.1 of scikit-learn.
fn read_name(directory: &str) -> Option<(String, String)> {
    let (name, version) = directory.strip_suffix(".dist-info")?.rsplit_once('-')?;
    Some((normal_name(name), version.to_owned()))
}

/// Names that differ only in case and in these characters mean the same package.
fn normal_name(name: &str) -> String {
    name.to_lowercase().replace(['_', '.'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_absence_are_told() {
        let layer = tempfile::tempdir().unwrap();
        let packages = layer.path().join("usr/local/lib/python3.11/dist-packages");
        for name in ["numpy-2.3.5.dist-info", "scikit_learn-1.7.0.dist-info", "numpy", "Other-1.dist-info"] {
            fs::create_dir_all(packages.join(name)).unwrap();
        }
        let list = "# numpy==1\nnumpy==2.3.5 scikit-learn==1.6.1\nspacy>=3 bokeh==3.7.3\n";
        let told: Vec<String> = compare(list, &installed(layer.path())).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["scikit-learn 1.7.0 (E2B: 1.6.1)", "no bokeh (E2B: 3.7.3)"]);
    }

    #[test]
    fn the_list_names_each_package_once_and_e2bs_versions() {
        let words: Vec<&str> =
            LIST.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect();
        let names: std::collections::BTreeSet<String> =
            words.iter().map(|word| normal_name(word.split(['<', '>', '=', '~', '!']).next().unwrap())).collect();
        assert_eq!(names.len(), words.len());
        let versions: BTreeMap<&str, &str> = exact_versions(LIST).collect();
        let known = [("pandas", "2.2.3"), ("numpy", "2.3.5"), ("matplotlib", "3.10.9"), ("plotly", "6.0.1")];
        for (name, version) in known.into_iter().chain([("scipy", "1.17.1"), ("ipython", "9.15.0")]) {
            assert_eq!(versions.get(name), Some(&version));
        }
    }
}
