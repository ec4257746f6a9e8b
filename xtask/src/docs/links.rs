//! Every relative link leads to a file of the repository, and every anchor to a heading of its page. Links to other
//! sites are not followed: a check must not depend on them.

use super::markdown::{anchors, links, without_code};
use super::{Repository, resolve};

pub(crate) fn check(repository: &Repository) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, text) in repository.pages() {
        let prose = without_code(text);
        for link in links(&prose).iter().filter(|link| !is_outside(link.target)) {
            if let Err(reason) = follow(repository, path, link.target) {
                wrong.push(format!("{path}:{}: the link to {} is broken: {reason}", link.line, link.target));
            }
        }
    }
    wrong
}

/// Whether a link names another site, or an address to write to.
pub(crate) fn is_outside(target: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|start| target.starts_with(start))
}

fn follow(repository: &Repository, page: &str, target: &str) -> Result<(), String> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let path = if path.is_empty() { page.to_owned() } else { resolve(page, path).ok_or("it leaves the repository")? };
    let Some(text) = repository.files.get(&path) else {
        let is_directory =
            repository.files.keys().any(|file| file.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/')));
        return Err(if is_directory {
            format!("{path} is a directory; link a file in it")
        } else {
            format!("there is no {path}")
        });
    };
    match anchor {
        Some(anchor) if path.ends_with(".md") && !anchors(text).contains(anchor) => {
            Err(format!("{path} has no heading for #{anchor}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_nowhere_is_named_with_its_line() {
        let page = "# One\n[good](b.md#two) [also](#one) [web](https://x.example/#y) [data](../c.txt)\n\n[gone](x.md)\n[gone](b.md#three)\n[out](../../y)\n[dir](../docs)";
        let repository = Repository::of(&[("docs/a.md", page), ("docs/b.md", "## Two"), ("c.txt", "")]);
        let expected = [
            "docs/a.md:4: the link to x.md is broken: there is no docs/x.md",
            "docs/a.md:5: the link to b.md#three is broken: docs/b.md has no heading for #three",
            "docs/a.md:6: the link to ../../y is broken: it leaves the repository",
            "docs/a.md:7: the link to ../docs is broken: docs is a directory; link a file in it",
        ];
        assert_eq!(check(&repository), expected);
    }
}
