//! What a person types: a line, or several that belong together. Without a person, all that there is to read at once.

use std::io::{IsTerminal, Read};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    Code(String),
    /// An empty line, or one that was given up.
    Nothing,
    End,
}

/// Where code comes from.
#[derive(Debug)]
pub(super) enum Input {
    Person {
        editor: Box<DefaultEditor>,
        /// Whether blocks are told by their indentation.
        is_python: bool,
    },
    Pipe {
        is_read: bool,
    },
}

impl Input {
    pub(super) fn open(language: &str) -> anyhow::Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Pipe { is_read: false });
        }
        say_error!("{language} in a sandbox. Ctrl-C interrupts, Ctrl-D ends.");
        let is_python = matches!(language.to_ascii_lowercase().as_str(), "python" | "python3" | "py");
        Ok(Self::Person { editor: Box::new(DefaultEditor::new()?), is_python })
    }

    pub(super) fn is_person(&self) -> bool {
        matches!(self, Self::Person { .. })
    }

    pub(super) fn read(&mut self) -> anyhow::Result<Typed> {
        match self {
            Self::Pipe { is_read: true } => Ok(Typed::End),
            Self::Pipe { is_read } => {
                *is_read = true;
                let mut code = String::new();
                std::io::stdin().read_to_string(&mut code)?;
                Ok(if code.trim().is_empty() { Typed::End } else { Typed::Code(code) })
            }
            Self::Person { editor, is_python } => read_lines(editor, *is_python),
        }
    }
}

fn read_lines(editor: &mut DefaultEditor, is_python: bool) -> anyhow::Result<Typed> {
    let mut code = String::new();
    loop {
        let prompt = if code.is_empty() { ">>> " } else { "... " };
        match editor.readline(prompt) {
            Ok(line) => {
                let is_last = line.trim().is_empty();
                code.push_str(&line);
                code.push('\n');
                if is_last || !goes_on(&code, is_python) {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) => return Ok(Typed::Nothing),
            Err(ReadlineError::Eof) => return Ok(Typed::End),
            Err(error) => return Err(error.into()),
        }
    }
    if code.trim().is_empty() {
        return Ok(Typed::Nothing);
    }
    editor.add_history_entry(code.trim_end())?;
    Ok(Typed::Code(code))
}

/// Whether more lines are to come: something is still open, or a block has begun that only an empty line ends.
fn goes_on(code: &str, is_python: bool) -> bool {
    let last = code.trim_end_matches('\n').lines().last().unwrap_or_default();
    let begins_block = is_python && last.trim_end().ends_with(':');
    let is_in_block = is_python && last.starts_with([' ', '\t']);
    let is_decorator = is_python && last.starts_with('@');
    last.ends_with('\\') || begins_block || is_in_block || is_decorator || has_open_bracket(code)
}

/// Brackets outside of quotes. A quote of three that is open counts as well.
fn has_open_bracket(code: &str) -> bool {
    let mut depth = 0_i32;
    let mut quote: Option<&str> = None;
    let mut rest = code;
    while let Some(next) = rest.chars().next() {
        let step = match quote {
            Some(open) if rest.starts_with(open) => {
                quote = None;
                open.len()
            }
            // A quote of one ends with its line.
            Some(open) if next == '\n' && open.len() == 1 => {
                quote = None;
                1
            }
            Some(_) if next == '\\' => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            Some(_) => next.len_utf8(),
            None => {
                let found = ["\"\"\"", "'''", "`", "\"", "'"].into_iter().find(|open| rest.starts_with(open));
                quote = found;
                match next {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth -= 1,
                    '#' => {
                        rest = rest.find('\n').map_or("", |end| &rest[end..]);
                        continue;
                    }
                    _ => {}
                }
                found.map_or(next.len_utf8(), str::len)
            }
        };
        rest = &rest[step.min(rest.len())..];
    }
    depth > 0 || quote.is_some_and(|open| open.len() == 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_whole_is_run_at_once() {
        for code in ["1 + 1\n", "x = {'a': [1]}\n", "print('(')\n", "f(\")\")  # (\n", "\"it's\"\n"] {
            assert!(!goes_on(code, true), "{code:?}");
        }
    }

    #[test]
    fn what_is_open_goes_on() {
        for code in ["def f():\n", "if x:\n    y\n", "f(1,\n", "x = [\n", "'''a\nb\n", "x = 1 + \\\n", "@cached\n"] {
            assert!(goes_on(code, true), "{code:?}");
        }
        assert!(goes_on("function f() {\n", false));
        assert!(!goes_on("case x:\n", false));
    }
}
