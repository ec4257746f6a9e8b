//! What ARCHITECTURE.md says about the tree: the sizes of the crates, and the paths of files.
//!
//! Every crate except those for tests and tools has a size below "Dependencies". A path is a code span with a slash, or
//! one that ends in `.rs`. A path of several parts is relative to the repository or to `crates`. A shorter one is
//! relative to the crate of its table row, or to a directory that the same row or paragraph names before it.

use super::workspace::Crate;

pub(crate) const PAGE: &str = "ARCHITECTURE.md";
/// Crates for tests and tools.
const LEFT_OUT: &[&str] = &["testkit", "bench", "xtask"];
/// How far a size may be from the truth: this part of it, or at least this many lines.
const TOLERANCE: f64 = 0.15;
const MIN_TOLERANCE: f64 = 100.0;

/// Returns what the page says wrong. `exists` says whether there is a file or a directory, by its path from the root.
pub(crate) fn check(page: &str, crates: &[Crate], exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let sizes: Vec<(&str, usize)> = crates.iter().map(|one| (short_name(&one.name), one.lines())).collect();
    let mut wrong = check_sizes(page, &sizes);
    wrong.extend(check_paths(page, exists));
    wrong
}

/// The name of a crate's directory.
fn short_name(name: &str) -> &str {
    match name.strip_prefix("isopod-") {
        Some(short) => short,
        None if name == "isopod" => "cli",
        None => name,
    }
}

fn check_sizes(page: &str, sizes: &[(&str, usize)]) -> Vec<String> {
    let Some(graph) = dependencies(page) else {
        return vec![format!("{PAGE} has no text block below `### Dependencies`")];
    };
    let mut wrong = Vec::new();
    let shown = shown_sizes(graph);
    for (name, lines) in sizes.iter().filter(|(name, _)| !LEFT_OUT.contains(name)) {
        match shown.iter().find(|(shown, _)| shown == name) {
            Some((_, thousands)) if is_near(*thousands, *lines) => {}
            Some((_, thousands)) => {
                wrong.push(format!("{PAGE} says that {name} has {thousands} thousand lines, and it has {lines}"));
            }
            None => wrong.push(format!("{PAGE} has no size of {name}, which has {lines} lines")),
        }
    }
    let unknown = shown.iter().filter(|(shown, _)| !sizes.iter().any(|(name, _)| name == shown));
    wrong.extend(unknown.map(|(name, _)| format!("{PAGE} has a size of {name}, which is not a crate")));
    wrong
}

fn is_near(thousands: f64, lines: usize) -> bool {
    let lines = lines as f64;
    (thousands * 1000.0 - lines).abs() <= (lines * TOLERANCE).max(MIN_TOLERANCE)
}

/// The drawing of the crates.
fn dependencies(page: &str) -> Option<&str> {
    let (_, section) = page.split_once("\n### Dependencies\n")?;
    let (_, block) = section.split_once("```text\n")?;
    block.split_once("```").map(|(block, _)| block)
}

/// All names that a number follows.
fn shown_sizes(graph: &str) -> Vec<(&str, f64)> {
    let words: Vec<&str> = graph.split(|letter: char| letter.is_whitespace() || letter == ',').collect();
    let pairs = words.windows(2).filter_map(|pair| Some((pair[0], pair[1].parse().ok()?)));
    pairs.filter(|(name, _)| name.starts_with(|letter: char| letter.is_ascii_lowercase())).collect()
}

fn check_paths(page: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mut known, mut is_code) = (Vec::new(), false);
    for (index, line) in page.lines().enumerate() {
        is_code ^= line.starts_with("```");
        if is_code {
            continue;
        }
        if line.is_empty() || line.starts_with('|') {
            known = directories_of_row(line, exists);
        }
        for path in code_spans(line).filter(|span| is_path(span)) {
            match find(path, &known, exists) {
                Some(found) => known.push(directory_of(&found)),
                None => wrong.push(format!("{PAGE}:{}: there is no {path}", index + 1)),
            }
        }
    }
    wrong
}

/// In a row of the table of crates: where the crate has its files.
fn directories_of_row(line: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let name = line.strip_prefix("| `").and_then(|rest| rest.split_once("` |")).map(|(name, _)| name);
    let places =
        |name: &str| [format!("crates/{name}/src"), format!("crates/{name}"), format!("{name}/src"), name.to_owned()];
    name.into_iter().flat_map(places).filter(|place| exists(place)).collect()
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_path(span: &str) -> bool {
    let is_plain = span.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte));
    is_plain && !span.starts_with('/') && (span.contains('/') || span.ends_with(".rs"))
}

fn find(path: &str, known: &[String], exists: &dyn Fn(&str) -> bool) -> Option<String> {
    let path = path.trim_end_matches('/');
    let near = known.iter().map(|directory| format!("{directory}/{path}"));
    let from_root = path.contains('/').then(|| [path.to_owned(), format!("crates/{path}")]);
    near.chain(from_root.into_iter().flatten()).find(|place| exists(place))
}

fn directory_of(path: &str) -> String {
    let (directory, last) = path.rsplit_once('/').unwrap_or(("", path));
    if last.contains('.') { directory.to_owned() } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &[&str] = &[
        "crates/node",
        "crates/node/src",
        "crates/node/src/pool.rs",
        "crates/node/src/build",
        "crates/node/src/build/copy.rs",
        "crates/node/src/guesses.rs",
        "xtask/src/graph/known.rs",
    ];

    fn paths(page: &str) -> Vec<String> {
        check_paths(page, &|path| TREE.contains(&path))
    }

    #[test]
    fn paths_that_exist_pass_in_every_short_form() {
        let page = "In `node/src/build`, `copy.rs` copies.\n\n| `node` | `pool.rs`, `build/` with `copy.rs` |\n\
            | who? | `node/src/pool.rs` and `guesses.rs`, `xtask/src/graph/known.rs` |\n`/proc/x`, `a b/c`, `word`\n\
            ```text\n`node/src/gone.rs`\n```\n";
        assert_eq!(paths(page), Vec::<String>::new());
    }

    #[test]
    fn a_path_that_does_not_exist_is_named_with_its_line() {
        assert_eq!(paths("\n\n`node/src/gone.rs`"), ["ARCHITECTURE.md:3: there is no node/src/gone.rs"]);
        assert_eq!(paths("| `node` | `gone/` |"), ["ARCHITECTURE.md:1: there is no gone/"]);
    }

    #[test]
    fn a_short_path_belongs_to_a_directory_that_its_row_or_paragraph_names() {
        let elsewhere = "ARCHITECTURE.md:1: there is no guesses.rs";
        assert_eq!(paths("| who? | `node/src/build`, where `guesses.rs` guesses |"), [elsewhere]);
        let paragraphs = "`node/src/build`\n`copy.rs`\n\n`copy.rs`";
        assert_eq!(paths(paragraphs), ["ARCHITECTURE.md:4: there is no copy.rs"]);
        assert_eq!(paths("| `node` | `pool.rs` |\n| x | `pool.rs` |"), ["ARCHITECTURE.md:2: there is no pool.rs"]);
    }

    fn sizes(graph: &str, sizes: &[(&str, usize)]) -> Vec<String> {
        check_sizes(&format!("# X\n\n### Dependencies\n\nWords.\n\n```text\n{graph}\n```\n\nnode 99\n"), sizes)
    }

    #[test]
    fn sizes_may_be_rounded_but_not_wrong() {
        let graph = "cli 12 ┬─▶ node 2.5\n       └─▶ lease 0.3, disk 2 ─▶ node";
        let near = [("cli", 12_900), ("node", 2_400), ("lease", 250), ("disk", 2_300), ("testkit", 9_000)];
        assert_eq!(sizes(graph, &near), Vec::<String>::new());
        let grown = [("cli", 15_000), ("node", 2_400), ("lease", 450), ("disk", 1_700)];
        assert_eq!(
            sizes(graph, &grown),
            [
                "ARCHITECTURE.md says that cli has 12 thousand lines, and it has 15000",
                "ARCHITECTURE.md says that lease has 0.3 thousand lines, and it has 450",
                "ARCHITECTURE.md says that disk has 2 thousand lines, and it has 1700",
            ]
        );
    }

    #[test]
    fn every_crate_has_a_size_and_every_size_a_crate() {
        let wrong = sizes("cli 12 ─▶ gone 3", &[("cli", 12_000), ("new", 500)]);
        assert_eq!(
            wrong,
            [
                "ARCHITECTURE.md has no size of new, which has 500 lines",
                "ARCHITECTURE.md has a size of gone, which is not a crate"
            ]
        );
        assert_eq!(check_sizes("# X", &[]), ["ARCHITECTURE.md has no text block below `### Dependencies`"]);
    }
}
