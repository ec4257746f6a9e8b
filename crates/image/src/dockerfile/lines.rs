//! Converts the lines of a file into logical lines: removes comments, joins continued lines, and attaches the bodies of
//! here-documents to their instruction.

use super::DockerfileError;
use super::heredoc::{Heredoc, openings};

/// One instruction as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Logical {
    pub(super) number: u32,
    pub(super) text: String,
    pub(super) heredocs: Vec<Heredoc>,
}

/// Returns the escape character and the instructions.
pub(super) fn logical_lines(text: &str) -> Result<(char, Vec<Logical>), DockerfileError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.contains('\0') {
        return Err(DockerfileError::new(1, "the file contains a zero byte, so it is not a text file"));
    }
    let escape = escape_directive(text)?;
    let mut lines = text.lines().enumerate().map(|(index, line)| (u32::try_from(index + 1).unwrap_or(u32::MAX), line));
    let mut found = Vec::new();
    while let Some((number, first)) = lines.next() {
        if is_blank_or_comment(first) {
            continue;
        }
        let mut joined = String::new();
        let mut next = Some(first);
        while let Some(line) = next.take() {
            match continued(line, escape) {
                Some(part) => {
                    joined.push_str(part);
                    // Comments and empty lines in the middle do not end the instruction.
                    next = lines.by_ref().map(|(_, line)| line).find(|line| !is_blank_or_comment(line));
                }
                None => joined.push_str(line),
            }
        }
        let joined = joined.trim().to_owned();
        let heredocs = read_heredocs(&joined, number, &mut lines)?;
        found.push(Logical { number, text: joined, heredocs });
    }
    Ok((escape, found))
}

fn is_blank_or_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// The line without its escape, if it continues on the next line.
fn continued(line: &str, escape: char) -> Option<&str> {
    let part = line.trim_end().strip_suffix(escape)?;
    // A doubled escape stands for the character itself.
    let doubled = part.chars().rev().take_while(|c| *c == escape).count() % 2 == 1;
    (!doubled).then_some(part)
}

/// Finds the `# escape=` directive, which must come before anything else in the file.
fn escape_directive(text: &str) -> Result<char, DockerfileError> {
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim().strip_prefix('#') else { break };
        let Some((name, value)) = comment.split_once('=') else { break };
        match (name.trim().to_ascii_lowercase().as_str(), value.trim()) {
            ("escape", "\\") => return Ok('\\'),
            ("escape", "`") => return Ok('`'),
            ("escape", other) => {
                let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
                return Err(DockerfileError::new(number, format!("escape must be \\ or `, not {other:?}")));
            }
            ("syntax" | "check", _) => {}
            _ => break,
        }
    }
    Ok('\\')
}

fn read_heredocs<'a>(
    text: &str,
    number: u32,
    lines: &mut impl Iterator<Item = (u32, &'a str)>,
) -> Result<Vec<Heredoc>, DockerfileError> {
    let word = text.split_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    let rest = text.split_whitespace().nth(1).unwrap_or_default().to_ascii_uppercase();
    let can_have_some = |word: &str| matches!(word, "RUN" | "COPY" | "ADD");
    let has_some = can_have_some(&word) || (word == "ONBUILD" && can_have_some(&rest));
    if !has_some {
        return Ok(Vec::new());
    }
    let mut heredocs = openings(text);
    for heredoc in &mut heredocs {
        loop {
            let Some((_, line)) = lines.next() else {
                let name = &heredoc.name;
                return Err(DockerfileError::new(number, format!("the here-document {name} has no end line")));
            };
            let line = if heredoc.strips_tabs { line.trim_start_matches('\t') } else { line };
            if line == heredoc.name {
                break;
            }
            heredoc.body.push_str(line);
            heredoc.body.push('\n');
        }
    }
    Ok(heredocs)
}
