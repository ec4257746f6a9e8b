//! The pages of the built site: every relative link leads to a file of the site, and every anchor to an element with
//! that id.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

use super::resolve;

/// Pages that mdBook makes for its own use.
const INTERNAL: [&str; 2] = ["404.html", "toc.html"];

pub(crate) fn check(site: &Path) -> Result<(), String> {
    let mut files = BTreeMap::new();
    read(site, "", &mut files)?;
    let wrong = broken_links(&files);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Reads all files below a directory. Those that are not pages have no text.
fn read(site: &Path, below: &str, files: &mut BTreeMap<String, String>) -> Result<(), String> {
    let directory = site.join(below);
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", directory.display());
    for entry in fs::read_dir(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if entry.path().is_dir() {
            read(site, &path, files)?;
        } else {
            let is_page = path.ends_with(".html");
            let text = if is_page { fs::read_to_string(entry.path()).map_err(failed)? } else { String::new() };
            files.insert(path, text);
        }
    }
    Ok(())
}

fn broken_links(files: &BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let ids: BTreeMap<&str, HashSet<&str>> =
        files.iter().map(|(path, page)| (path.as_str(), attributes(page, &["id"]).collect())).collect();
    for (path, page) in files.iter().filter(|(path, _)| !INTERNAL.contains(&path.as_str())) {
        for target in attributes(page, &["href", "src"]).filter(|target| !has_scheme(target)) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { Some(path.clone()) } else { resolve(path, file) };
            let found = file.and_then(|file| ids.get(file.as_str()));
            if !found.is_some_and(|ids| anchor.is_empty() || ids.contains(anchor)) {
                wrong.push(format!("the site's {path} links {target}, which doesn't exist"));
            }
        }
    }
    wrong
}

fn has_scheme(target: &str) -> bool {
    target.split(['/', '#', '?']).next().is_some_and(|start| start.contains(':')) || target.starts_with("//")
}

/// The values of attributes with these names.
fn attributes<'a>(page: &'a str, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
    names.iter().flat_map(move |name| {
        let found = page.match_indices(*name).filter(|(at, _)| page[..*at].ends_with([' ', '\n']));
        found.filter_map(|(at, _)| page[at + name.len()..].strip_prefix("=\"")?.split('"').next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_a_page_leads_to_a_file_and_an_id() {
        let page = r##"<h1 id="one"><a href="#one">1</a></h1><a href="sub/b.html#two"></a> <img src="x.svg">
            <a href="https://x.example/y">out</a> <a href="gone.html"></a> <a href="sub/b.html#no"></a>"##;
        let other = r#"<a class="x" id="two" href="../a.html#one"></a>"#;
        let files = [("a.html", page), ("sub/b.html", other), ("x.svg", "")];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let wrong = broken_links(&files);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("gone.html") && wrong[1].contains("sub/b.html#no"), "{wrong:?}");
    }
}
