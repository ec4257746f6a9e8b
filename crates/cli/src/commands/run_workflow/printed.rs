//! The lines that a node has printed. One line has room beside the node's name; where there are more, they go above the
//! tree, all but the last while the node runs.

use crate::printable::printable;

/// Lines of a node that go above the tree. `isopod runs logs` has the others.
const MAX_LINES: usize = 20;
/// What agents are told about files; the tree has them beside the node.
const FILES_NOTE: &str = "[SYSTEM: The following files were generated/updated";

#[derive(Debug, Default)]
pub(super) struct Printed {
    /// A line that has not ended yet.
    open: String,
    last: Option<String>,
    count: usize,
}

impl Printed {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.count == 0
    }

    /// The last line, also if it has not ended yet.
    pub(super) fn last(&self) -> Option<String> {
        if self.open.trim().is_empty() { self.last.clone() } else { Some(printable(&self.open)) }
    }

    /// Takes output, in pieces of any length. Returns lines that go above the tree.
    pub(super) fn push(&mut self, text: &str) -> Vec<String> {
        self.open.push_str(text);
        let mut above = Vec::new();
        while let Some((line, rest)) = self.open.split_once('\n') {
            let (line, rest) = (line.to_owned(), rest.to_owned());
            self.open = rest;
            above.extend(self.add(&line));
        }
        above
    }

    /// Returns the lines that are still to go above the tree, or the only one there was.
    pub(super) fn finish(&mut self) -> (Vec<String>, Option<String>) {
        let open = std::mem::take(&mut self.open);
        let mut above: Vec<String> = self.add(&open).into_iter().collect();
        if self.count <= 1 {
            return (above, self.last.take());
        }
        above.extend(self.last.take().filter(|_| self.count <= MAX_LINES));
        if self.count > MAX_LINES {
            above.push(format!("… {} more lines", self.count - MAX_LINES));
        }
        (above, None)
    }

    /// Returns the line before, if that goes above the tree.
    fn add(&mut self, line: &str) -> Option<String> {
        if line.trim().is_empty() || line.starts_with(FILES_NOTE) {
            return None;
        }
        self.count += 1;
        let before = self.last.replace(printable(line));
        before.filter(|_| self.count <= MAX_LINES + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that goes above the tree, and what stays beside the node.
    fn all(pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let mut printed = Printed::default();
        let mut above: Vec<String> = pieces.iter().flat_map(|piece| printed.push(piece)).collect();
        let (rest, only) = printed.finish();
        above.extend(rest);
        (above, only)
    }

    #[test]
    fn one_line_stays_beside_the_node_and_more_go_above_the_tree() {
        assert_eq!(all(&[]), (vec![], None));
        assert_eq!(all(&["on", "ly\n", "\n"]), (vec![], Some("only".to_owned())));
        assert_eq!(all(&["one\ntw", "o\nthree"]), (["one", "two", "three"].map(str::to_owned).to_vec(), None));
    }

    #[test]
    fn many_lines_are_counted() {
        for count in [MAX_LINES, MAX_LINES + 1, 1000] {
            let text: String = (0..count).map(|number| format!("{number}\n")).collect();
            let (above, only) = all(&[&text]);
            assert_eq!(only, None);
            let expected =
                if count > MAX_LINES { format!("… {} more lines", count - MAX_LINES) } else { "19".to_owned() };
            assert_eq!(above.last(), Some(&expected));
            assert_eq!(above.len(), MAX_LINES + usize::from(count > MAX_LINES));
        }
    }

    #[test]
    fn the_last_line_is_known_before_it_ends() {
        let mut printed = Printed::default();
        assert!(printed.push("10%\r20%").is_empty());
        assert!(printed.last().unwrap().contains("20%"));
        assert_eq!(printed.push("\n30%"), Vec::<String>::new());
        assert_eq!(printed.last().as_deref(), Some("30%"));
    }
}
