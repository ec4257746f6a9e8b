//! What was tried and how it went, as rows for the published table.
//!
//! One file per case, so that tests which run side by side do not disturb each other. A test that fails leaves the rows it
//! got to and one that says so.
//!
//! The published table has exactly these attacks: a test that tries something else fails until
//! `docs/security/regenerate.sh` has written the page anew. How an attack ended may differ from kernel to kernel.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Mutex;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security/escape-suite.md");
/// Set by whoever writes the page.
const WRITE_DOCS: &str = "ISOPOD_WRITE_DOCS";

/// Who tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// `user`, uid 1000.
    User,
    /// The sandbox's root.
    Root,
}

impl Who {
    pub(crate) const BOTH: [Self; 2] = [Self::User, Self::Root];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Root => "root",
        }
    }
}

/// The rows of one case.
#[derive(Debug)]
pub(crate) struct Table {
    case: &'static str,
    /// Attack, who, outcome. Probes add to it while others hold a shared reference.
    rows: Mutex<Vec<(String, &'static str, String)>>,
}

impl Table {
    /// `case` is its number and its name in words.
    pub(crate) fn new(case: &'static str) -> Self {
        Self { case, rows: Mutex::default() }
    }

    /// Notes that an attack failed, and how.
    pub(crate) fn held(&self, attack: impl Into<String>, who: Who, how: impl Into<String>) {
        self.add(attack, who.name(), how);
    }

    /// Notes an attack from outside of a sandbox, or before it has users.
    pub(crate) fn held_for_all(&self, attack: impl Into<String>, how: impl Into<String>) {
        self.add(attack, "both", how);
    }

    fn add(&self, attack: impl Into<String>, who: &'static str, how: impl Into<String>) {
        self.rows.lock().expect("no test panics here").push((attack.into(), who, how.into()));
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (attack, who, how) in self.rows.lock().expect("no test panics here").iter() {
            writeln!(text, "{}\t{}\t{who}\t{}", self.case, clean(attack), clean(how))
                .expect("a string takes everything");
        }
        if std::thread::panicking() {
            writeln!(text, "{}\tthe test\tboth\tFAILED", self.case).expect("a string takes everything");
        }
        text
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("escape-table");
        let name: String = self.case.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let written = std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(directory.join(format!("{name}.tsv")), self.text()));
        if !std::thread::panicking() {
            written.expect("the table can be written");
            self.assert_is_published();
        }
    }
}

impl Table {
    fn assert_is_published(&self) {
        if std::env::var_os(WRITE_DOCS).is_some() {
            return;
        }
        let rows = self.rows.lock().expect("no test panics here");
        let tried: BTreeSet<String> = rows.iter().map(|(attack, _, _)| clean(attack).trim().to_owned()).collect();
        let page = std::fs::read_to_string(PAGE).expect("the page is there");
        let told = attacks_on_page(&page, self.case);
        let advice = "run docs/security/regenerate.sh as root and commit docs/security/escape-suite.md";
        let (new, old): (Vec<_>, Vec<_>) = (tried.difference(&told).collect(), told.difference(&tried).collect());
        assert!(
            new.is_empty() && old.is_empty(),
            "{:?}: not on the page {new:?}, not tried {old:?}; {advice}",
            self.case
        );
    }
}

fn clean(field: &str) -> String {
    field.replace(['\t', '\n', '|'], " ")
}

/// The first column of a case's table.
fn attacks_on_page(page: &str, case: &str) -> BTreeSet<String> {
    let lines = page.lines().skip_while(|line| line.strip_prefix("## ") != Some(case)).skip(1);
    let rows = lines.take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| "));
    rows.filter_map(|row| Some(row.split('|').nth(1)?.trim().to_owned())).filter(|name| name != "attack").collect()
}

/// The sources, in which every case has its name.
const SOURCES: &[&str] = &[
    include_str!("access.rs"),
    include_str!("checkpoint.rs"),
    include_str!("crash.rs"),
    include_str!("entering.rs"),
    include_str!("exhaustion.rs"),
    include_str!("files.rs"),
    include_str!("kernel.rs"),
    include_str!("neighbours.rs"),
    include_str!("network.rs"),
    include_str!("network_rights.rs"),
    include_str!("raw_http.rs"),
    include_str!("store.rs"),
    include_str!("template.rs"),
    include_str!("zygote.rs"),
];

#[test]
fn the_page_has_the_cases_of_the_suite() {
    if std::env::var_os(WRITE_DOCS).is_some() {
        return;
    }
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let told: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let tried: BTreeSet<&str> = SOURCES.iter().flat_map(|source| cases_in(source)).collect();
    assert_eq!(told, tried, "run docs/security/regenerate.sh as root and commit docs/security/escape-suite.md");
    assert!(!page.contains("FAILED"), "the page was written after a run that failed");
}

/// What tables are made with.
fn cases_in(source: &str) -> Vec<&str> {
    let made = ["Table::new(", "Arena::start(", "Arena::start_with("];
    let after = made.into_iter().flat_map(|call| source.split(call).skip(1));
    after.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next()).collect()
}

#[test]
fn a_row_that_is_missing_on_the_page_is_noticed() {
    let page = "# x\n\n## 1 One\n\n| attack | as user | as root |\n|---|---|---|\n| a | x | – |\n\n## 2 Two\n\n| b | x | y |\n";
    let one = attacks_on_page(page, "1 One");
    assert_eq!(one.iter().collect::<Vec<_>>(), ["a"]);
    assert_eq!(attacks_on_page(page, "2 Two").len(), 1);
    assert!(attacks_on_page(page, "3 Three").is_empty());
    assert_eq!(cases_in("a(Table::new(\"1 One\")); Arena::start_with(\n  \"2 Two\", x)"), ["1 One", "2 Two"]);
}
