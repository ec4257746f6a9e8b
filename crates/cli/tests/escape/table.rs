//! What was tried and how it went, as rows for the published table.
//!
//! One file per case, so that tests which run side by side do not disturb each other. A test that fails leaves the rows it
//! got to and one that says so.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Mutex;

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
        let clean = |field: &str| field.replace(['\t', '\n', '|'], " ");
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
        }
    }
}
