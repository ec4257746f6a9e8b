//! Known vulnerabilities of the crates: `cargo deny check advisories`, for `cargo xtask ci`.
//!
//! Neither cargo-deny nor its database comes with this workspace, and CI needs no network. So this step runs where both are
//! there, and otherwise says that it did not.

use std::env;
use std::path::{Path, PathBuf};

use crate::program::{cargo, find_program, run};
use crate::steps::Steps;

pub(crate) fn check_advisories(steps: &mut Steps) -> Result<(), String> {
    match obstacle(find_program("cargo-deny").is_some(), databases().as_deref()) {
        None => steps.time("advisories", || run(&mut cargo(&["deny", "--offline", "check", "advisories"]))),
        Some(obstacle) => {
            steps.note(format!("known vulnerabilities of the crates were not checked: {obstacle}"));
            Ok(())
        }
    }
}

/// Returns what is missing and what helps.
fn obstacle(is_installed: bool, databases: Option<&Path>) -> Option<&'static str> {
    if !is_installed {
        return Some("cargo-deny is missing; run: cargo install cargo-deny --locked");
    }
    let found = databases.and_then(|path| path.read_dir().ok()).into_iter().flatten().flatten();
    let is_there = found.into_iter().any(|entry| entry.path().is_dir());
    (!is_there).then_some("cargo-deny has no database; run: cargo deny fetch db")
}

/// Where cargo-deny keeps its databases, a directory for each.
fn databases() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    Some(home.join("advisory-dbs"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::root;

    #[test]
    fn without_the_program_or_a_database_the_note_says_what_to_run() {
        let (without, with) = (root().join("no-such-directory"), root().join("crates"));
        assert!(obstacle(false, Some(&with)).unwrap().ends_with("cargo install cargo-deny --locked"));
        assert!(obstacle(true, None).unwrap().ends_with("cargo deny fetch db"));
        assert!(obstacle(true, Some(&without)).unwrap().ends_with("cargo deny fetch db"));
        assert_eq!(obstacle(true, Some(&with)), None);
    }
}
