//! The declaration of tests in a crate's manifest:
//!
//! ```toml
//! [package.metadata.isopod-tests]
//! fake = ["audit", "lifecycle"]           # binaries of this tier
//! real = ["escape", "lib::network"]       # also: tests of a binary by the beginning of their path
//! postgres = ["lib", "lifecycle"]         # binaries that run once more with their records in PostgreSQL
//! one-thread = ["lib"]                    # unit tests that must not run beside each other in one process
//!
//! [package.metadata.isopod-tests.serial]
//! disk = ["disk_full", "power"]           # never two of a group at the same time
//! alone = ["fairness"]                    # this group: nothing else beside it
//! ```
//!
//! `lib` and `bin` are unit tests unless declared otherwise. A binary from `tests/` must be in one of the lists, and so
//! must a file of `tests/all`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Tier;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Declared {
    tiers: Vec<(Entry, Tier)>,
    postgres: Vec<Entry>,
    one_thread: Vec<Entry>,
    serial: BTreeMap<String, Vec<Entry>>,
}

/// A binary, or those of its tests whose path starts with this prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    binary: String,
    path: Option<String>,
}

impl Declared {
    /// `table` is the value of `package.metadata.isopod-tests`, or null.
    pub(crate) fn parse(table: &Value) -> Result<Self, String> {
        let mut declared = Self::default();
        let empty = serde_json::Map::new();
        for (key, value) in table.as_object().unwrap_or(&empty) {
            match (key.as_str(), Tier::parse(key)) {
                (_, Some(tier)) => declared.tiers.extend(entries(value)?.into_iter().map(|entry| (entry, tier))),
                ("postgres", _) => declared.postgres = entries(value)?,
                ("one-thread", _) => declared.one_thread = entries(value)?,
                ("serial", _) => {
                    for (group, members) in value.as_object().ok_or("serial must be a table of groups")? {
                        declared.serial.insert(group.clone(), entries(members)?);
                    }
                }
                (unknown, _) => return Err(format!("unknown key {unknown}")),
            }
        }
        Ok(declared)
    }

    /// Finds the first mistake: a binary of `tests/` without a tier, or a name that is not a binary.
    pub(crate) fn check(&self, binaries: &[String]) -> Result<(), String> {
        let is_unit_by_default = |binary: &&String| ["lib", "bin"].contains(&binary.as_str());
        let no_tier = |binary: &&String| self.tier_of_binary(binary).is_none();
        if let Some(binary) = binaries.iter().filter(|binary| !is_unit_by_default(binary)).find(no_tier) {
            return Err(format!(
                "tests/{binary} has no tier; add \"{binary}\" to fake or real in [package.metadata.isopod-tests]"
            ));
        }
        let tiers = self.tiers.iter().map(|(entry, _)| entry);
        let mut named = tiers.chain(&self.postgres).chain(&self.one_thread).chain(self.serial.values().flatten());
        match named.find(|entry| !binaries.contains(&entry.binary)) {
            Some(entry) => {
                Err(format!("[package.metadata.isopod-tests] names {}, which is not a test binary", entry.binary))
            }
            None => Ok(()),
        }
    }

    /// The tier of a binary as a whole, if it is declared.
    fn tier_of_binary(&self, binary: &str) -> Option<Tier> {
        let whole = |entry: &Entry| entry.binary == binary && entry.path.is_none();
        self.tiers.iter().find(|(entry, _)| whole(entry)).map(|(_, tier)| *tier)
    }

    pub(crate) fn tier_of(&self, binary: &str) -> Tier {
        self.tier_of_binary(binary).unwrap_or(Tier::Unit)
    }

    /// The tier of one test: that of the longest matching prefix of its path, or its binary's.
    pub(crate) fn tier_of_test(&self, binary: &str, test: &str) -> Tier {
        let said = self.paths(binary).into_iter().filter(|(path, _)| is_below(test, path));
        said.max_by_key(|(path, _)| path.len()).map_or_else(|| self.tier_of(binary), |(_, tier)| tier)
    }

    /// Whether some of its tests are in another tier than the binary.
    pub(crate) fn is_split(&self, binary: &str) -> bool {
        !self.paths(binary).is_empty()
    }

    /// Returns a declared path that matches no test of the binary, because the test was renamed and would run in the
    /// wrong tier.
    pub(crate) fn stale_path(&self, binary: &str, tests: &[String]) -> Option<&str> {
        let mut paths = self.paths(binary).into_iter().map(|(path, _)| path);
        paths.find(|path| !tests.iter().any(|test| is_below(test, path)))
    }

    fn paths(&self, binary: &str) -> Vec<(&str, Tier)> {
        let of_binary = self.tiers.iter().filter(|(entry, _)| entry.binary == binary);
        of_binary.filter_map(|(entry, tier)| Some((entry.path.as_deref()?, *tier))).collect()
    }

    pub(crate) fn group_of(&self, binary: &str) -> Option<&str> {
        let has = |members: &[Entry]| members.iter().any(|entry| entry.binary == binary);
        self.serial.iter().find(|(_, members)| has(members)).map(|(group, _)| group.as_str())
    }

    pub(crate) fn runs_on_postgres(&self, binary: &str) -> bool {
        self.postgres.iter().any(|entry| entry.binary == binary)
    }

    pub(crate) fn is_one_thread(&self, binary: &str) -> bool {
        self.one_thread.iter().any(|entry| entry.binary == binary)
    }
}

fn entries(value: &Value) -> Result<Vec<Entry>, String> {
    let list = value.as_array().ok_or("every key but serial has a list of names")?;
    let names = list.iter().map(|name| name.as_str().ok_or_else(|| format!("{name} is not a name")));
    names.map(|name| Ok(Entry::parse(name?))).collect()
}

impl Entry {
    fn parse(text: &str) -> Self {
        match text.split_once("::") {
            Some((binary, path)) => Self { binary: binary.to_owned(), path: Some(path.to_owned()) },
            None => Self { binary: text.to_owned(), path: None },
        }
    }
}

/// Whether a path is this one or one below it. `a::bc` is not below `a::b`.
fn is_below(test: &str, path: &str) -> bool {
    test.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

    use serde_json::json;

    use super::*;

    fn declared() -> Declared {
        Declared::parse(&json!({
            "fake": ["audit"],
            "real": ["disk", "lib::network", "lib::base::tests::traps"],
            "postgres": ["lib"],
            "serial": { "disks": ["disk"] },
        }))
        .unwrap()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_binary_without_a_tier_is_an_error_that_names_the_fix() {
        let error = declared().check(&names(&["lib", "audit", "disk", "new"])).unwrap_err();
        assert!(error.contains("tests/new") && error.contains("add \"new\""), "{error}");
        let error = declared().check(&names(&["lib", "audit"])).unwrap_err();
        assert!(error.contains("names disk"), "{error}");
        assert_eq!(declared().check(&names(&["lib", "audit", "disk"])), Ok(()));
        assert!(Declared::parse(&json!({ "reel": [] })).is_err());
        assert!(Declared::parse(&json!({ "real": "disk" })).is_err());
    }

    #[test]
    fn tests_of_a_binary_can_be_in_another_tier() {
        let declared = declared();
        assert!(declared.is_split("lib") && !declared.is_split("disk"));
        assert_eq!(declared.tier_of("lib"), Tier::Unit);
        assert_eq!(declared.tier_of_test("lib", "network::tests::reach"), Tier::Real);
        assert_eq!(declared.tier_of_test("lib", "networks::tests"), Tier::Unit);
        assert_eq!(declared.tier_of_test("lib", "base::tests::traps::one"), Tier::Real);
        assert_eq!(declared.tier_of_test("lib", "base::tests::other"), Tier::Unit);
    }

    #[test]
    fn a_path_that_no_test_has_is_found() {
        let tests = names(&["network::a", "base::tests::renamed"]);
        assert_eq!(declared().stale_path("lib", &tests), Some("base::tests::traps"));
        assert_eq!(declared().stale_path("lib", &names(&["network::a", "base::tests::traps::b"])), None);
    }

    #[test]
    fn groups_and_second_runs_are_known() {
        assert_eq!(declared().group_of("disk"), Some("disks"));
        assert_eq!(declared().group_of("audit"), None);
        assert!(declared().runs_on_postgres("lib") && !declared().runs_on_postgres("audit"));
    }

    #[test]
    fn nothing_declared_is_all_unit() {
        let declared = Declared::parse(&Value::Null).unwrap();
        assert_eq!(declared.check(&names(&["lib", "bin"])), Ok(()));
        assert_eq!(declared.tier_of("lib"), Tier::Unit);
    }
}
