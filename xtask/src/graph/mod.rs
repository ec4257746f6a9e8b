//! `cargo xtask graph`: which crate uses which, how long each is, and which of its modules use each other.
//!
//! Cargo refuses cycles of crates, but nothing refuses cycles of modules. `--check` does, and also refuses crates that
//! are too large, and compares what ARCHITECTURE.md says with the tree. Only top-level modules are compared; the modules below one of them may use each other freely.

mod cursor;
mod cycles;
mod known;
mod modules;
mod page;
mod tokens;
mod workspace;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use cycles::{Arrows, cycles};
use modules::{Modules, Use};
use workspace::{Crate, read_workspace};

use crate::program::root;

/// The maximum number of lines of a crate without its tests. Blank lines and comments count.
const MAX_LINES: usize = 15_000;
const USAGE: &str = "usage: cargo xtask graph [--check | --uses]";

/// Prints the graph. `--check` fails if it violates the rules. `--uses` prints every use of one module by another, one
/// per line, for scripts.
pub(crate) fn graph(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        [] => print(&describe(&read_workspace()?)),
        ["--check"] => {
            let crates = read_workspace()?;
            check(&crates, known::LARGE, known::CYCLES)?;
            check_page(&crates)
        }
        ["--uses"] => print(&list_uses(&read_workspace()?)),
        _ => Err(USAGE.to_owned()),
    }
}

/// Compares the graph with the known exceptions.
fn check(crates: &[Crate], large: &[&str], known_cycles: &[(&str, &[&str])]) -> Result<(), String> {
    let wrong: Vec<String> = check_sizes(crates, large).into_iter().chain(check_cycles(crates, known_cycles)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Compares the sizes and the paths in ARCHITECTURE.md with the tree.
fn check_page(crates: &[Crate]) -> Result<(), String> {
    let text = std::fs::read_to_string(root().join(page::PAGE));
    let text = text.map_err(|error| format!("cannot read {}: {error}", page::PAGE))?;
    let wrong = page::check(&text, crates, &|path| root().join(path).exists());
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn check_sizes(crates: &[Crate], large: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for one in crates {
        let (name, lines) = (one.name.as_str(), one.lines());
        match (lines > MAX_LINES, large.contains(&name)) {
            (true, false) => wrong.push(format!("{name} has {lines} lines without tests; the limit is {MAX_LINES}")),
            (false, true) => {
                wrong.push(format!("{name} has {lines} lines: take it out of LARGE in xtask/src/graph/known.rs"))
            }
            _ => {}
        }
    }
    let unknown = large.iter().filter(|name| !crates.iter().any(|one| one.name == **name));
    wrong.extend(
        unknown.map(|name| format!("there is no crate {name}: take it out of LARGE in xtask/src/graph/known.rs")),
    );
    wrong
}

fn check_cycles(crates: &[Crate], known: &[(&str, &[&str])]) -> Vec<String> {
    let known: BTreeSet<(&str, BTreeSet<&str>)> =
        known.iter().map(|(name, modules)| (*name, modules.iter().copied().collect())).collect();
    let mut found = BTreeSet::new();
    let mut wrong = Vec::new();
    for (name, modules) in all_modules(crates) {
        for cycle in cycles(&arrows(modules)) {
            if !known.contains(&(name, cycle.clone())) {
                wrong.push(format!(
                    "a cycle of modules in {name}: {}\n{}",
                    join(&cycle),
                    describe_cycle(modules, &cycle)
                ));
            }
            found.insert((name, cycle));
        }
    }
    let gone = known.difference(&found).map(|(name, cycle)| {
        format!("{name} no longer has exactly this cycle: {}; change CYCLES in xtask/src/graph/known.rs", join(cycle))
    });
    wrong.extend(gone);
    wrong
}

fn describe(crates: &[Crate]) -> String {
    let mut text = String::from("crates, with their lines and files without tests, and the crates they use\n");
    for one in crates {
        let uses = if one.uses.is_empty() { "nothing".to_owned() } else { join(&one.uses) };
        let _ = writeln!(text, "  {:<18} {:>6} {:>4}  {uses}", one.name, one.lines(), one.files());
    }
    for one in crates {
        for target in &one.targets {
            let _ = write!(text, "\n{} ({})\n{}", one.name, target.kind, describe_modules(&target.modules));
        }
    }
    text
}

fn describe_modules(modules: &Modules) -> String {
    let arrows = arrows(modules);
    let mut text = String::new();
    for (module, lines) in &modules.lines {
        let _ = writeln!(text, "  {module:<18} {lines:>6}  {}", join(&arrows[module.as_str()]));
    }
    for cycle in cycles(&arrows) {
        let _ = write!(text, "  cycle: {}\n{}", join(&cycle), describe_cycle(modules, &cycle));
    }
    text
}

/// Describes every use that is part of this cycle.
fn describe_cycle(modules: &Modules, cycle: &BTreeSet<&str>) -> String {
    let mut text = String::new();
    let mut last = None;
    for found in &modules.uses {
        let arrow = (found.from.as_str(), found.to.as_str());
        if !cycle.contains(arrow.0) || !cycle.contains(arrow.1) {
            continue;
        }
        if last.replace(arrow) != Some(arrow) {
            let _ = writeln!(text, "    {} uses {}", arrow.0, arrow.1);
        }
        let _ = writeln!(text, "      {}:{} {}", found.file.display(), found.line, found.path);
    }
    text
}

fn list_uses(crates: &[Crate]) -> String {
    let mut text = String::new();
    for (name, modules) in all_modules(crates) {
        for Use { from, to, file, line, path } in &modules.uses {
            let _ = writeln!(text, "{name}\t{from}\t{to}\t{}:{line}\t{path}", file.display());
        }
    }
    text
}

fn all_modules(crates: &[Crate]) -> impl Iterator<Item = (&str, &Modules)> {
    crates.iter().flat_map(|one| one.targets.iter().map(|target| (one.name.as_str(), &target.modules)))
}

fn arrows(modules: &Modules) -> Arrows<'_> {
    let mut arrows: Arrows<'_> = modules.lines.keys().map(|module| (module.as_str(), BTreeSet::new())).collect();
    for found in &modules.uses {
        arrows.entry(&found.from).or_default().insert(&found.to);
    }
    arrows
}

fn join<T: AsRef<str>>(names: &BTreeSet<T>) -> String {
    names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
}

fn print(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader may have closed the pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("cannot print: {error}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use workspace::Target;

    /// A crate with `lines` lines whose modules `a`, `b` and `c` use each other as in `"a>b b>a"`.
    fn made_crate(uses: &str, lines: usize) -> Crate {
        let source_of = |module: &str| {
            let used = uses.split(' ').filter_map(|arrow| arrow.split_once('>')).filter(|(from, _)| *from == module);
            let used: String = used.map(|(_, to)| format!("use crate::{to}::X; ")).collect();
            format!("{used}{}", "\n".repeat(if module == "a" { lines } else { 0 }))
        };
        let read = |file: &Path| match file.to_str()? {
            "lib.rs" => Some("mod a; mod b; mod c;".to_owned()),
            other => Some(source_of(other.strip_suffix(".rs")?)),
        };
        let modules = Modules::read(Path::new("lib.rs"), &read).unwrap();
        let targets = vec![Target { kind: "lib".to_owned(), modules }];
        Crate { name: "made".to_owned(), uses: BTreeSet::new(), targets }
    }

    #[test]
    fn the_workspace_has_only_what_is_known() {
        check(&read_workspace().unwrap(), known::LARGE, known::CYCLES).unwrap();
    }

    #[test]
    fn architecture_md_has_the_sizes_and_paths_of_the_tree() {
        check_page(&read_workspace().unwrap()).unwrap();
    }

    #[test]
    fn a_new_cycle_is_refused_with_what_makes_it() {
        let refused = check(&[made_crate("a>b b>a b>c", 1)], &[], &[]).unwrap_err();
        assert_eq!(
            refused,
            "a cycle of modules in made: a, b\n    a uses b\n      a.rs:1 b::X\n    b uses a\n      b.rs:1 a::X\n"
        );
    }

    #[test]
    fn a_known_cycle_must_be_exactly_the_one_there_is() {
        let known: &[(&str, &[&str])] = &[("made", &["b", "a"])];
        check(&[made_crate("a>b b>a", 1)], &[], known).unwrap();
        for other in ["a>b", "a>b b>c c>a"] {
            let refused = check(&[made_crate(other, 1)], &[], known).unwrap_err();
            assert!(refused.contains("made no longer has exactly this cycle: a, b;"), "{refused}");
        }
    }

    #[test]
    fn a_crate_may_be_as_long_as_the_limit_and_no_longer() {
        let others = made_crate("", 0).lines();
        check(&[made_crate("", MAX_LINES - others)], &[], &[]).unwrap();
        let refused = check(&[made_crate("", MAX_LINES - others + 1)], &[], &[]).unwrap_err();
        assert_eq!(refused, "made has 15001 lines without tests; the limit is 15000");
        check(&[made_crate("", MAX_LINES + 1)], &["made"], &[]).unwrap();
    }

    #[test]
    fn a_crate_that_became_small_or_went_must_leave_the_list() {
        let refused = check(&[made_crate("", 1)], &["made", "gone"], &[]).unwrap_err();
        assert!(refused.starts_with("made has 2 lines: take it out"), "{refused}");
        assert!(refused.contains("\nthere is no crate gone: take it out"), "{refused}");
    }
}
