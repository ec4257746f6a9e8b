//! A change to a file of CRIU, and how it is made.

use std::fs;
use std::path::Path;

use super::write;

/// A change at a place that a short text names. The text is in the file exactly once.
pub(super) struct Edit {
    pub(super) file: &'static str,
    /// Why, in a line.
    pub(super) why: &'static str,
    pub(super) anchor: &'static str,
    pub(super) change: Change,
}

/// What happens at the anchor. New text is whole lines, except that of `Instead`.
pub(super) enum Change {
    /// Lines before the one on which the anchor begins.
    Before(&'static str),
    /// Lines after the one on which the anchor ends.
    After(&'static str),
    /// Text in the place of the anchor.
    Instead(&'static str),
}

/// Changes the files below a directory.
pub(super) fn apply_all(edits: &[Edit], directory: &Path) -> Result<(), String> {
    for edit in edits {
        let file = directory.join(edit.file);
        let text = fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", edit.file))?;
        write(&file, &edit.apply(&text)?)?;
    }
    Ok(())
}

/// All that decides what the files become.
pub(super) fn texts(edits: &[Edit]) -> impl Iterator<Item = &'static str> {
    edits.iter().flat_map(|edit| {
        let (kind, text) = edit.change.parts();
        [edit.file, edit.anchor, kind, text]
    })
}

impl Edit {
    fn apply(&self, text: &str) -> Result<String, String> {
        let (start, end) = self.find(text)?;
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[end..].find('\n').map_or(text.len(), |newline| end + newline + 1);
        let (kept, new, rest) = match self.change {
            Change::Before(new) => (line_start, new, line_start),
            Change::After(new) => (line_end, new, line_end),
            Change::Instead(new) => (start, new, end),
        };
        Ok([&text[..kept], new, &text[rest..]].concat())
    }

    fn find(&self, text: &str) -> Result<(usize, usize), String> {
        let mut found = text.match_indices(self.anchor);
        let problem = match (found.next(), found.next()) {
            (Some((start, anchor)), None) => return Ok((start, start + anchor.len())),
            (None, _) => "is not there",
            _ => "is there more than once",
        };
        Err(format!("cannot edit {} ({}): {:?} {problem}", self.file, self.why, self.anchor))
    }
}

impl Change {
    fn parts(&self) -> (&'static str, &'static str) {
        match self {
            Self::Before(text) => ("before", text),
            Self::After(text) => ("after", text),
            Self::Instead(text) => ("instead", text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "one(1);\ntwo(2);\ntwo(3);\n";

    fn edit(anchor: &'static str, change: Change) -> Edit {
        Edit { file: "numbers.c", why: "a test", anchor, change }
    }

    #[test]
    fn lines_go_before_or_after_the_line_of_the_anchor() {
        let before = edit("(2)", Change::Before("new();\n")).apply(TEXT);
        assert_eq!(before.unwrap(), "one(1);\nnew();\ntwo(2);\ntwo(3);\n");
        let after = edit("(2)", Change::After("new();\n")).apply(TEXT);
        assert_eq!(after.unwrap(), "one(1);\ntwo(2);\nnew();\ntwo(3);\n");
        assert_eq!(edit("one", Change::Before("new();\n")).apply(TEXT).unwrap(), format!("new();\n{TEXT}"));
        assert_eq!(edit("(3)", Change::After("new();\n")).apply(TEXT).unwrap(), format!("{TEXT}new();\n"));
    }

    #[test]
    fn an_anchor_may_span_lines() {
        let anchor = "(1);\ntwo";
        assert_eq!(edit(anchor, Change::Before("a\n")).apply(TEXT).unwrap(), "a\none(1);\ntwo(2);\ntwo(3);\n");
        assert_eq!(edit(anchor, Change::After("a\n")).apply(TEXT).unwrap(), "one(1);\ntwo(2);\na\ntwo(3);\n");
        assert_eq!(edit(anchor, Change::Instead("a")).apply(TEXT).unwrap(), "onea(2);\ntwo(3);\n");
    }

    #[test]
    fn only_the_anchor_is_replaced() {
        assert_eq!(edit("2", Change::Instead("22")).apply(TEXT).unwrap(), "one(1);\ntwo(22);\ntwo(3);\n");
    }

    #[test]
    fn an_anchor_that_is_missing_or_not_unique_is_refused() {
        let refused = edit("three", Change::Instead("")).apply(TEXT).unwrap_err();
        assert_eq!(refused, "cannot edit numbers.c (a test): \"three\" is not there");
        let refused = edit("two", Change::Instead("")).apply(TEXT).unwrap_err();
        assert_eq!(refused, "cannot edit numbers.c (a test): \"two\" is there more than once");
    }

    #[test]
    fn edits_of_a_file_are_made_one_after_the_other() {
        let directory = std::env::temp_dir().join(format!("isopod-edits-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("numbers.c"), TEXT).unwrap();
        let edits = [edit("one", Change::Instead("four")), edit("four", Change::After("five();\n"))];
        let made = apply_all(&edits, &directory);
        let text = fs::read_to_string(directory.join("numbers.c"));
        let unmade = apply_all(&edits, &directory);
        fs::remove_dir_all(&directory).unwrap();
        made.unwrap();
        assert_eq!(text.unwrap(), "four(1);\nfive();\ntwo(2);\ntwo(3);\n");
        assert_eq!(unmade.unwrap_err(), "cannot edit numbers.c (a test): \"one\" is not there");
    }
}
