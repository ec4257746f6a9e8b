//! `cargo xtask docs`: checks the links of all Markdown files and the numbers of the README, and builds the site with
//! mdBook. `--check` only checks, in less than a second.

mod book;
mod links;
mod markdown;
mod mdbook;
mod numbers;
mod site;
mod summary;

use std::collections::BTreeMap;
use std::process::Command;

use crate::program::{output_of, root};

const USAGE: &str = "usage: cargo xtask docs [--check]";

pub(crate) fn docs(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        [] => {
            check()?;
            build()
        }
        ["--check"] => check(),
        _ => Err(USAGE.to_owned()),
    }
}

/// Checks what can be wrong in the sources of the documentation.
pub(crate) fn check() -> Result<(), String> {
    let repository = Repository::read()?;
    let mut wrong = links::check(&repository);
    wrong.extend(summary::check(&repository));
    wrong.extend(numbers::check(&repository));
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Builds the site and checks the links of its pages.
pub(crate) fn build() -> Result<(), String> {
    let program = mdbook::ensure()?;
    let site = book::build(&program, &Repository::read()?)?;
    site::check(&site)?;
    eprintln!("the site is in {}", site.display());
    Ok(())
}

/// The files that git has or would add. Files that are not text are there without content.
#[derive(Debug, Default)]
struct Repository {
    files: BTreeMap<String, String>,
}

impl Repository {
    fn read() -> Result<Self, String> {
        let mut git = Command::new("git");
        git.current_dir(root()).args(["-c", "safe.directory=*", "ls-files", "-z"]);
        let listed = output_of(git.args(["--cached", "--others", "--exclude-standard"]))?;
        let paths = listed.split_terminator('\0').filter(|path| root().join(path).is_file());
        let files = paths.map(|path| (path.to_owned(), std::fs::read_to_string(root().join(path)).unwrap_or_default()));
        Ok(Self { files: files.collect() })
    }

    /// Paths and texts of all Markdown files.
    fn pages(&self) -> impl Iterator<Item = (&str, &str)> {
        let files = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        files.filter(|(path, _)| path.ends_with(".md"))
    }

    fn text(&self, path: &str) -> Result<&str, String> {
        self.files.get(path).map(String::as_str).ok_or_else(|| format!("{path} doesn't exist"))
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        Self { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }
}

/// Joins a path to the directory of a file, both relative to the root. `None` if it leaves the root.
fn resolve(file: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_no_broken_link_no_stray_page_and_no_wrong_number() {
        check().unwrap();
    }

    #[test]
    fn a_path_is_relative_to_its_file_and_stays_below_the_root() {
        assert_eq!(resolve("docs/bench/README.md", "../run.md").as_deref(), Some("docs/run.md"));
        assert_eq!(resolve("README.md", "./docs/x.md").as_deref(), Some("docs/x.md"));
        assert_eq!(resolve("docs/x.md", "../../etc"), None);
    }
}
