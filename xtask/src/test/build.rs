//! Builds all tests with one call of cargo, and reads from it where they are.

use std::path::PathBuf;

use serde_json::Value;

use super::workspace::{Workspace, binary_name};
use super::{Options, Tier};
use crate::program::{cargo, output_of};

pub(crate) struct Built {
    pub(crate) tests: Vec<TestBinary>,
    /// Programs and examples, by name.
    programs: Vec<(String, PathBuf)>,
}

pub(crate) struct TestBinary {
    pub(crate) path: PathBuf,
    /// The directory of its package.
    pub(crate) directory: String,
    /// `lib`, `bin`, or the name of a file in `tests/`.
    pub(crate) name: String,
}

impl Built {
    pub(crate) fn build(workspace: &Workspace, options: &Options) -> Result<Self, String> {
        let mut command = cargo(&["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
        command.args(targets(options, |short, binary| workspace.target_of(short, binary).map(str::to_owned)));
        Self::read(&output_of(&mut command)?)
    }

    /// Parses cargo's messages, one per line.
    fn read(messages: &str) -> Result<Self, String> {
        let mut built = Self { tests: Vec::new(), programs: Vec::new() };
        for line in messages.lines() {
            let message: Value = serde_json::from_str(line).map_err(|error| format!("cargo's message: {error}"))?;
            built.add(&message);
        }
        Ok(built)
    }

    fn add(&mut self, message: &Value) {
        let Some(path) = message["executable"].as_str().map(PathBuf::from) else { return };
        let target = &message["target"];
        if message["profile"]["test"] == true {
            let manifest = message["manifest_path"].as_str().unwrap_or_default();
            let directory = manifest.trim_end_matches("/Cargo.toml").to_owned();
            let name = binary_name(target).unwrap_or_else(|| "example".to_owned());
            self.tests.push(TestBinary { path, directory, name });
        } else if let Some(name) = target["name"].as_str() {
            self.programs.push((name.to_owned(), path));
        }
    }

    pub(crate) fn program(&self, name: &str) -> Result<PathBuf, String> {
        let found = self.programs.iter().find(|(known, _)| known == name);
        found.map(|(_, path)| path.clone()).ok_or_else(|| format!("cargo built no program {name}"))
    }
}

/// Returns cargo's options if not everything is needed. Always for the whole workspace: cargo chooses the features of
/// dependencies by the selection, and would build them again.
fn targets(options: &Options, target_of: impl Fn(&str, &str) -> Option<String>) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let named = options.filter.names_binary().and_then(|(short, binary)| target_of(short, binary));
    match named.as_deref() {
        Some("lib") => words(&["--lib"]),
        Some("bin") => words(&["--bins"]),
        Some(target) => words(&["--test", target]),
        None if options.tiers() == [Tier::Unit].into() => words(&["--lib", "--bins"]),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

    use std::path::Path;

    use super::*;

    #[test]
    fn test_binaries_and_programs_are_told_apart() {
        let messages = r#"{"reason":"compiler-artifact","executable":null,"target":{"kind":["lib"],"name":"a"},"profile":{"test":false}}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","executable":"/t/a-1","target":{"kind":["lib"],"name":"a"},"profile":{"test":true}}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","executable":"/t/b-1","target":{"kind":["test"],"name":"b"},"profile":{"test":true}}
{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","executable":"/t/prog","target":{"kind":["bin"],"name":"prog"},"profile":{"test":false}}
{"reason":"build-finished","success":true}"#;
        let built = Built::read(messages).unwrap();
        let tests: Vec<_> = built.tests.iter().map(|test| (test.directory.as_str(), test.name.as_str())).collect();
        assert_eq!(tests, [("/w/crates/a", "lib"), ("/w/crates/a", "b")]);
        assert_eq!(built.program("prog").unwrap(), Path::new("/t/prog"));
        assert!(built.program("other").is_err());
    }

    #[test]
    fn only_what_is_needed_is_built() {
        let told = |arguments: &[&str]| {
            let target_of = |short: &str, binary: &str| match (short, binary) {
                ("cli", "none") => None,
                ("cli", binary) => Some(binary.to_owned()),
                ("server", "runs") => Some("all".to_owned()),
                _ => None,
            };
            targets(&Options::parse(arguments).unwrap(), target_of).join(" ")
        };
        assert_eq!(told(&[]), "");
        assert_eq!(told(&["--unit"]), "--lib --bins");
        assert_eq!(told(&["cli::run"]), "--test run");
        assert_eq!(told(&["server::runs::one"]), "--test all");
        assert_eq!(told(&["cli::bin::args"]), "--bins");
        assert_eq!(told(&["tests::one_of_many_modules"]), "");
        assert_eq!(told(&["--real"]), "");
    }
}
