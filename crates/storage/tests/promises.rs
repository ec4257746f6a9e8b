//! The pages with promises name the tests that prove them. Every name must be the name of a test.

#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in the helpers")]

use std::path::{Path, PathBuf};

/// The pages that name tests.
const PAGES: [&str; 5] = [
    "docs/semantics/storage.md",
    "docs/semantics/output.md",
    "docs/storage.md",
    "docs/security/model.md",
    "docs/security/cases.md",
];

#[test]
fn every_test_that_a_page_names_exists() {
    let sources = sources();
    let mut missing = Vec::new();
    for page in PAGES {
        let names = named_tests(&std::fs::read_to_string(root().join(page)).unwrap());
        assert!(names.len() >= 10, "{page} names hardly any test: {names:?}");
        missing.extend(names.into_iter().filter(|name| !is_test(&sources, name)).map(|name| format!("{page}: {name}")));
    }
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
}

#[test]
fn a_name_that_is_no_test_is_found() {
    assert_eq!(named_tests("(`a_thing_that_is_so`, `fsync`, `x-y`, `total_size_bytes`)"), ["a_thing_that_is_so"]);
    let sources =
        [(PathBuf::from("a.rs"), "#[test]\nfn one_that_is_there() {}\nfn a_helper_of_it_all() {}".to_owned())];
    assert!(is_test(&sources, "one_that_is_there"));
    assert!(!is_test(&sources, "a_helper_of_it_all") && !is_test(&sources, "one_that_is"));
}

/// Words in backticks that can only be the name of a test, because they have four parts or more.
fn named_tests(page: &str) -> Vec<String> {
    let is_name = |word: &&str| {
        word.matches('_').count() >= 3
            && word.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
    };
    page.split('`').skip(1).step_by(2).filter(is_name).map(str::to_owned).collect()
}

fn is_test(sources: &[(PathBuf, String)], name: &str) -> bool {
    let head = format!("fn {name}(");
    sources.iter().any(|(_, text)| {
        text.match_indices(&head).any(|(at, _)| {
            // There is no end of another function between the attribute and the name.
            let before = text[..at].rsplit_once("}\n").map_or(&text[..at], |(_, rest)| rest);
            before.contains("#[test]") || before.contains("#[tokio::test")
        })
    })
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut todo = vec![root().join("crates"), root().join("tests")];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("promises.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
