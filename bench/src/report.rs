//! The report: Markdown tables, printed as they are finished and written to a file at the end.

use std::fmt::Write;

/// Collects tables.
#[derive(Debug, Default)]
pub(crate) struct Report {
    text: String,
}

/// A table with a title.
#[derive(Debug)]
pub(crate) struct Table {
    text: String,
}

/// A target, and whether it was met.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Table {
    pub(crate) fn new(title: &str, columns: &[&str]) -> Self {
        let line = "---|".repeat(columns.len());
        Self { text: format!("### {title}\n\n| {} |\n|{line}\n", columns.join(" | ")) }
    }

    pub(crate) fn row<T: AsRef<str>>(&mut self, cells: &[T]) {
        let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
    }

    pub(crate) fn note(&mut self, text: &str) {
        let _ = write!(self.text, "\n{text}\n");
    }
}

impl Report {
    /// Adds a table and prints it at once.
    pub(crate) fn add(&mut self, table: &Table) {
        self.paragraph(&table.text);
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        println!("{text}");
        let _ = writeln!(self.text, "{text}");
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

impl Bound {
    /// Returns the bound and the result, such as `≤ 5 ✓`.
    pub(crate) fn verdict(self, value: f64) -> String {
        match self {
            Self::AtMost(bound) => format!("≤ {bound} {}", mark(value <= bound)),
            Self::AtLeast(bound) => format!("≥ {bound} {}", mark(value >= bound)),
        }
    }
}

fn mark(kept: bool) -> &'static str {
    if kept { "✓" } else { "✗" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_says_whether_it_was_kept() {
        assert_eq!(Bound::AtMost(5.0).verdict(4.0), "≤ 5 ✓");
        assert_eq!(Bound::AtLeast(300.0).verdict(299.0), "≥ 300 ✗");
    }
}
