//! docs/SUMMARY.md is the table of contents of the site. Its links are relative to docs/, like those of all pages.

use std::collections::HashSet;

use super::links::is_outside;
use super::markdown::{links, without_code};
use super::{Repository, resolve};

pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// Every page below docs/ is in the table of contents once, and so is every other page that one of them links.
pub(crate) fn check(repository: &Repository) -> Vec<String> {
    let chapters = match chapters(repository) {
        Ok(chapters) => chapters,
        Err(reason) => return vec![reason],
    };
    let mut listed: HashSet<&str> = HashSet::new();
    let twice = chapters.iter().filter(|path| !listed.insert(path));
    let mut wrong: Vec<String> = twice.map(|path| format!("{SUMMARY} lists {path} twice")).collect();
    let (mut wanted, mut seen): (Vec<String>, HashSet<String>) = (chapters.clone(), HashSet::new());
    wanted.extend(repository.pages().map(|(path, _)| path.to_owned()).filter(|path| path.starts_with("docs/")));
    while let Some(page) = wanted.pop() {
        if page == SUMMARY || !seen.insert(page.clone()) {
            continue;
        }
        if !listed.contains(page.as_str()) {
            wrong.push(format!(
                "{SUMMARY} doesn't list {page}, which is below docs/ or is linked by a page of the site"
            ));
        }
        wanted.extend(linked_files(repository, &page).into_iter().filter(|path| path.ends_with(".md")));
    }
    wrong
}

/// The pages of the site, in their order, as paths from the root.
pub(crate) fn chapters(repository: &Repository) -> Result<Vec<String>, String> {
    repository.text(SUMMARY)?;
    Ok(linked_files(repository, SUMMARY))
}

/// The files of the repository that a page links, in their order.
pub(crate) fn linked_files(repository: &Repository, page: &str) -> Vec<String> {
    let prose = without_code(repository.files.get(page).map_or("", String::as_str));
    let targets = links(&prose).into_iter().map(|link| link.target).filter(|target| !is_outside(target));
    let paths = targets.filter_map(|target| target.split('#').next()).filter(|path| !path.is_empty());
    let files = paths.filter_map(|path| resolve(page, path));
    files.filter(|path| repository.files.contains_key(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_not_listed_or_listed_twice_is_named() {
        let files = [
            (SUMMARY, "- [a](a.md)\n- [a](a.md)\n- [top](../TOP.md)"),
            ("docs/a.md", "[other](../other/README.md#x) [data](../x.txt)"),
            ("docs/stray.md", ""),
            ("other/README.md", ""),
            ("elsewhere.md", ""),
            ("TOP.md", ""),
            ("x.txt", ""),
        ];
        let wrong = check(&Repository::of(&files));
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        for words in ["lists docs/a.md twice", "doesn't list docs/stray.md", "doesn't list other/README.md"] {
            assert!(wrong.iter().any(|line| line.contains(words)), "{words}: {wrong:?}");
        }
        assert_eq!(check(&Repository::default()), ["docs/SUMMARY.md doesn't exist"]);
    }
}
