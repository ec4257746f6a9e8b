//! `cargo xtask requirements`: counts the states in docs/requirements.md. `--check` compares the page with the
//! repository: every id has one row and occurs nowhere else, and the tests that rows name exist. Reviewers judge
//! whether a test shows its requirement.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

use crate::program::{output_of, root};

const PAGE: &str = "docs/requirements.md";
const USAGE: &str = "usage: cargo xtask requirements [--check]";
/// The numbers of each area.
const AREAS: [(u32, &[RangeInclusive<u32>]); 4] =
    [(1, &[1..=56]), (2, &[1..=24, 40..=46]), (3, &[1..=15, 20..=26]), (4, &[1..=20, 30..=44])];

pub(crate) fn requirements(arguments: &[&str]) -> Result<(), String> {
    let files = read_repository()?;
    match arguments {
        [] => writeln!(io::stdout(), "{}", count_states(&files)?).map_err(|error| format!("cannot print: {error}")),
        ["--check"] => check(&files),
        _ => Err(USAGE.to_owned()),
    }
}

fn check(files: &[File]) -> Result<(), String> {
    let rows = rows(page(files)?)?;
    let wrong: Vec<String> =
        check_ids(&rows).into_iter().chain(check_rows(&rows, files)).chain(check_strays(files)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn check_ids(rows: &[Row<'_>]) -> Vec<String> {
    let wanted: HashSet<String> = all_ids().collect();
    let mut seen = HashSet::new();
    let mut wrong: Vec<String> = Vec::new();
    for Row { id, .. } in rows {
        if !wanted.contains(*id) {
            wrong.push(format!("{PAGE}: unknown requirement {id}"));
        } else if !seen.insert(*id) {
            wrong.push(format!("{PAGE}: {id} has two rows"));
        }
    }
    wrong.extend(all_ids().filter(|id| !seen.contains(id.as_str())).map(|id| format!("{PAGE}: {id} has no row")));
    wrong
}

fn check_rows(rows: &[Row<'_>], files: &[File]) -> Vec<String> {
    let tests: Vec<(&str, HashSet<&str>)> = files.iter().map(|file| (file.path.as_str(), tests_of(file))).collect();
    let mut wrong = Vec::new();
    for Row { id, tests: named, state } in rows {
        let has_details = state.strip_prefix("partly (").is_some_and(|rest| rest.len() > 1 && rest.ends_with(')'));
        if !has_details && !["shown", "missing"].contains(state) {
            wrong.push(format!("{PAGE}: the state of {id} is not `shown`, `partly (…)` or `missing`: {state}"));
        }
        if *state == "shown" && named.is_empty() {
            wrong.push(format!("{PAGE}: {id} is shown by no test"));
        }
        let unknown = named.iter().filter(|name| !tests.iter().any(|(path, found)| is_called(name, path, found)));
        wrong.extend(unknown.map(|name| format!("{PAGE}: {id} names a test that does not exist: {name}")));
    }
    wrong
}

fn check_strays(files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for File { path, text } in files.iter().filter(|file| file.path != PAGE) {
        let strays = text.lines().enumerate().filter(|(_, line)| has_id(line));
        wrong
            .extend(strays.map(|(number, _)| format!("{path}:{}: ids of requirements belong into {PAGE}", number + 1)));
    }
    wrong
}

fn count_states(files: &[File]) -> Result<String, String> {
    let rows = rows(page(files)?)?;
    let count = |state: &str| rows.iter().filter(|row| row.state.starts_with(state)).count();
    Ok(format!("{} shown, {} partly, {} missing", count("shown"), count("partly"), count("missing")))
}

/// One row of a table on the page.
#[derive(Debug, PartialEq)]
struct Row<'a> {
    id: &'a str,
    tests: Vec<&'a str>,
    state: &'a str,
}

fn rows(page: &str) -> Result<Vec<Row<'_>>, String> {
    page.lines().filter(|line| line.starts_with("| S")).map(row).collect()
}

fn row(line: &str) -> Result<Row<'_>, String> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let ["", id, _, _, tests, state, ""] = cells[..] else {
        return Err(format!("{PAGE}: not a row of five cells: {line}"));
    };
    Ok(Row { id, tests: tests.split('`').skip(1).step_by(2).collect(), state })
}

fn all_ids() -> impl Iterator<Item = String> {
    let numbers = AREAS.into_iter().flat_map(|(area, ranges)| ranges.iter().cloned().map(move |range| (area, range)));
    numbers.flat_map(|(area, range)| range.map(move |number| format!("S{area}.{number}")))
}

/// Whether a line contains something that looks like an id, known or not.
fn has_id(line: &str) -> bool {
    line.match_indices('S').any(|(at, _)| {
        let is_in_word = line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let [_, area, b'.', digit, ..] = line.as_bytes()[at..] else { return false };
        !is_in_word && (b'1'..=b'4').contains(&area) && digit.is_ascii_digit()
    })
}

/// A text file of the repository.
#[derive(Debug)]
struct File {
    path: String,
    text: String,
}

fn page(files: &[File]) -> Result<&str, String> {
    files.iter().find(|file| file.path == PAGE).map(|file| file.text.as_str()).ok_or_else(|| format!("no {PAGE}"))
}

/// Reads the files that git has or would add.
fn read_repository() -> Result<Vec<File>, String> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["-c", "safe.directory=*", "ls-files", "-z"]);
    let listed = output_of(git.args(["--cached", "--others", "--exclude-standard"]))?;
    let paths = listed.split_terminator('\0').map(str::to_owned);
    // Files that are not text, or are gone from the disk, have no ids.
    Ok(paths.filter_map(|path| Some(File { text: std::fs::read_to_string(root().join(&path)).ok()?, path })).collect())
}

/// Whether `name` is a test of this file. A Rust test is named with any modules and crates above it, other tests with
/// their file.
fn is_called(name: &str, path: &str, tests: &HashSet<&str>) -> bool {
    let Some((place, test)) = name.rsplit_once("::") else { return false };
    if !tests.contains(test) {
        return false;
    }
    let parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    place == path || place.split("::").all(|part| part == "tests" || parts.contains(&part))
}

fn tests_of(file: &File) -> HashSet<&str> {
    match Path::new(&file.path).extension().and_then(|extension| extension.to_str()) {
        Some("rs") => rust_tests(&file.text),
        Some("py") => python_tests(&file.text),
        Some("js" | "mjs" | "ts") => javascript_tests(&file.text),
        _ => HashSet::new(),
    }
}

/// Finds functions with `#[test]` or `#[tokio::test]` above them.
fn rust_tests(text: &str) -> HashSet<&str> {
    let mut is_marked = false;
    let mut found = HashSet::new();
    for line in text.lines().map(str::trim_start) {
        is_marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let Some(function) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") else { continue };
        if std::mem::take(&mut is_marked) {
            found.insert(first_word(function));
        }
    }
    found
}

/// Finds functions that are registered with `@case`, named `test_…`, or called in their own file.
fn python_tests(text: &str) -> HashSet<&str> {
    let mut before = "";
    let mut found = HashSet::new();
    for line in text.lines() {
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("def ");
        if let Some(name) = function.map(first_word) {
            let is_used =
                || text.split(|letter: char| !is_part_of_word(letter)).filter(|word| *word == name).count() > 1;
            if before.starts_with("@case") || name.starts_with("test_") || is_used() {
                found.insert(name);
            }
        }
        before = line;
    }
    found
}

/// Finds the names in `test('…')` and `it('…')`, and in `feature('…', '…')` of the SDK suite.
fn javascript_tests(text: &str) -> HashSet<&str> {
    let calls = text
        .lines()
        .map(str::trim_start)
        .filter(|line| ["test(", "it(", "feature("].iter().any(|call| line.starts_with(call)));
    calls.filter_map(|line| line.split(['\'', '"', '`']).skip(1).step_by(2).last()).collect()
}

fn first_word(text: &str) -> &str {
    text.split(|letter| !is_part_of_word(letter)).next().unwrap_or_default()
}

fn is_part_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    /// A page on which every requirement is missing, except those in `rows`, given as id, tests and state.
    fn page_with(rows: &[(&str, &str, &str)]) -> File {
        let others = all_ids().filter(|id| !rows.iter().any(|(other, ..)| other == id));
        let others = others.map(|id| format!("| {id} | a | b | – | missing |\n"));
        let rows = rows.iter().map(|(id, tests, state)| format!("| {id} | a | b | {tests} | {state} |\n"));
        file(PAGE, &rows.chain(others).collect::<String>())
    }

    fn id(area: u32, number: u32) -> String {
        format!("S{area}.{number}")
    }

    #[test]
    fn the_page_agrees_with_the_repository() {
        check(&read_repository().unwrap()).unwrap();
    }

    #[test]
    fn there_are_144_requirements_and_each_has_one_row() {
        assert_eq!(all_ids().count(), 144);
        check(&[page_with(&[])]).unwrap();
        let (first, unknown) = (id(1, 1), id(2, 30));
        let wrong = page_with(&[(&first, "–", "missing"), (&first, "–", "missing"), (&unknown, "–", "missing")]);
        let text = wrong.text.replace(&format!("| {} |", id(4, 44)), "| other |");
        let expected = [
            format!("{first} has two rows"),
            format!("unknown requirement {unknown}"),
            format!("{} has no row", id(4, 44)),
        ];
        let refused = check(&[file(PAGE, &text)]).unwrap_err();
        assert!(expected.iter().all(|words| refused.contains(words)), "{refused}");
    }

    #[test]
    fn a_row_names_tests_that_exist() {
        let first = id(1, 1);
        let sources = || {
            file(
                "crates/control/tests/runs.rs",
                "#[tokio::test(flavor = \"x\")]\n/// Text.\nasync fn it_runs() {}\nfn helper() {}",
            )
        };
        for good in ["`runs::it_runs`", "`control::runs::it_runs`, `tests::it_runs`"] {
            check(&[page_with(&[(&first, good, "shown")]), sources()]).unwrap();
        }
        for bad in ["`runs::helper`", "`it_runs`", "`cli::it_runs`", "`runs::it_runs`, `runs::gone`"] {
            let refused = check(&[page_with(&[(&first, bad, "shown")]), sources()]).unwrap_err();
            assert!(refused.contains("a test that does not exist"), "{bad}: {refused}");
        }
    }

    #[test]
    fn a_state_is_one_of_three_and_shown_needs_a_test() {
        let first = id(1, 1);
        for (state, words) in [
            ("shown", "shown by no test"),
            ("partly", "is not `shown`"),
            ("partly ()", "is not `shown`"),
            ("done", "is not `shown`"),
        ] {
            let refused = check(&[page_with(&[(&first, "–", state)])]).unwrap_err();
            assert!(refused.contains(words), "{state}: {refused}");
        }
        let page = page_with(&[(&first, "–", "partly (no test)")]);
        assert_eq!(count_states(&[page]).unwrap(), "0 shown, 1 partly, 143 missing");
        assert!(rows(&format!("| {first} | a | b |")).is_err());
    }

    #[test]
    fn an_id_elsewhere_is_found_with_its_line() {
        let refused = check(&[page_with(&[]), file("a.rs", &format!("one\n/// {}", id(3, 9)))]).unwrap_err();
        assert_eq!(refused, format!("a.rs:2: ids of requirements belong into {PAGE}"));
        for fine in ["TLS1.2", "S3", "S3.", "S5.1", "S3.x", "", "Ü S", "_S1.1"] {
            assert!(!has_id(fine), "{fine}");
        }
    }

    #[test]
    fn tests_are_found_in_all_three_languages() {
        let found =
            rust_tests("proptest! {\n    /// Text.\n    #[test]\n    fn a_rule(x in 0..4) {}\n}\nfn no_test() {}");
        assert_eq!(found, HashSet::from(["a_rule"]));
        let python = "@case(\"tags\")\nasync def a_case(sdk):\n    pass\n\ndef test_one(): pass\ndef a_flow(): pass\ndef unused(): pass\na_flow()\n";
        assert_eq!(python_tests(python), HashSet::from(["a_case", "test_one", "a_flow"]));
        let javascript = "feature('builds', 'a step fails', () =>\n  test(\"it works\", x)\nother('no')";
        assert_eq!(javascript_tests(javascript), HashSet::from(["a step fails", "it works"]));
        assert!(is_called("tests/sdk/a.py::a_case", "tests/sdk/a.py", &HashSet::from(["a_case"])));
        assert!(!is_called("tests/sdk/b.py::a_case", "tests/sdk/a.py", &HashSet::from(["a_case"])));
    }
}
