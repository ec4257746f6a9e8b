//! Builds the site. Pages link each other as files of the repository, also outside of docs/, and that works on the site
//! too, because mdBook reads a copy of the pages, and of the files that they link, with the same paths.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Repository;
use super::markdown::links;
use super::resolve;
use super::summary::{SUMMARY, chapters, linked_files};
use crate::program::{root, run, target_directory};

const SETTINGS: &str = "docs/book.toml";

/// Returns the directory with the site.
pub(crate) fn build(mdbook: &Path, repository: &Repository) -> Result<PathBuf, String> {
    let book = target_directory()?.join("docs");
    stage(repository, &book)?;
    run(Command::new(mdbook).arg("build").arg(&book).env("MDBOOK_LOG", "warn"))?;
    Ok(book.join("site"))
}

fn stage(repository: &Repository, book: &Path) -> Result<(), String> {
    match fs::remove_dir_all(book) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed("remove", book, &error)),
        _ => {}
    }
    let pages = chapters(repository)?;
    let mut files: Vec<String> = pages.iter().flat_map(|page| linked_files(repository, page)).collect();
    files.retain(|path| !path.ends_with(".md"));
    files.extend(pages);
    files.sort_unstable();
    files.dedup();
    let sources = book.join("src");
    for path in files {
        copy(&root().join(&path), &sources.join(&path))?;
    }
    copy(&root().join(SETTINGS), &book.join("book.toml"))?;
    let contents = from_root(repository.text(SUMMARY)?);
    let place = sources.join("SUMMARY.md");
    fs::write(&place, contents).map_err(|error| failed("write", &place, &error))
}

/// The table of contents with links that are relative to the root.
fn from_root(summary: &str) -> String {
    let mut moved = summary.to_owned();
    for link in links(summary) {
        if let Some(path) = resolve(SUMMARY, link.target) {
            moved = moved.replace(&format!("]({})", link.target), &format!("](./{path})"));
        }
    }
    moved
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory).map_err(|error| failed("create", directory, &error))?;
    }
    fs::copy(from, to).map(drop).map_err(|error| failed("copy", from, &error))
}

fn failed(verb: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {verb} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contents_name_pages_from_the_root() {
        let summary = "# Contents\n\n[Isopod](../README.md)\n\n- [Run](run.md)\n- [Bench](bench/README.md)\n";
        let expected =
            "# Contents\n\n[Isopod](./README.md)\n\n- [Run](./docs/run.md)\n- [Bench](./docs/bench/README.md)\n";
        assert_eq!(from_root(summary), expected);
    }
}
