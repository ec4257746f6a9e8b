//! Parses a shell line into its commands, for rules about commands. It supports the plain part of the POSIX shell:
//! words, quotes, assignments, redirections, and commands joined by `;`, `&`, `&&`, `||`, `|` and newlines.
//!
//! It refuses what it cannot parse with certainty: substitutions, variables or patterns in a command's name,
//! here-documents, groups, functions and keywords such as `if` and `for`. So a rule is never applied to only half of
//! what would run.

use std::iter::Peekable;
use std::str::Chars;

/// One command: its name and arguments. A word with a variable or a pattern stays as written.
pub(super) type Argv = Vec<String>;

/// Why a line was not parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ShellError {
    #[error("{0} cannot be checked")]
    Unsupported(&'static str),
    #[error("a quote is not closed")]
    OpenQuote,
    #[error("the line is not complete")]
    Incomplete,
    #[error("a command's name must be plain text")]
    UnclearName,
    #[error("there is no command in it")]
    Empty,
}

/// Keywords of compound commands.
const RESERVED: [&str; 19] = [
    "!", "{", "}", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in",
    "select", "then", "until", "while",
];

/// The commands of a line, in order.
pub(super) fn commands_of(line: &str) -> Result<Vec<Argv>, ShellError> {
    let mut reader = Reader { rest: line.chars().peekable() };
    let (mut commands, mut current) = (Vec::new(), Words::default());
    loop {
        match reader.next_token()? {
            Token::Word(word) => current.push(word)?,
            Token::Redirection => match reader.next_token()? {
                // The target of a redirection is not a command. The sandbox protects files.
                Token::Word(_) => current.redirected = true,
                _ => return Err(ShellError::Incomplete),
            },
            Token::Separator => current.finish(&mut commands, false)?,
            Token::Joiner => current.finish(&mut commands, true)?,
            Token::End => {
                current.finish(&mut commands, false)?;
                return if commands.is_empty() { Err(ShellError::Empty) } else { Ok(commands) };
            }
        }
    }
}

/// A command that is being parsed.
#[derive(Default)]
struct Words {
    argv: Argv,
    assigned: bool,
    redirected: bool,
    /// It follows `&&`, `||` or `|`, so it must not be empty.
    expected: bool,
}

impl Words {
    fn push(&mut self, word: Word) -> Result<(), ShellError> {
        if self.argv.is_empty() {
            if word.is_assignment {
                self.assigned = true;
                return Ok(());
            }
            if word.is_expanded || word.text.is_empty() {
                return Err(ShellError::UnclearName);
            }
            if !word.is_quoted && RESERVED.contains(&word.text.as_str()) {
                return Err(ShellError::Unsupported("a compound command"));
            }
        }
        self.argv.push(word.text);
        Ok(())
    }

    fn finish(&mut self, commands: &mut Vec<Argv>, more_expected: bool) -> Result<(), ShellError> {
        let ended = std::mem::take(self);
        let is_empty = ended.argv.is_empty() && !ended.assigned && !ended.redirected;
        if is_empty && (more_expected || ended.expected) {
            return Err(ShellError::Incomplete);
        }
        if !ended.argv.is_empty() {
            commands.push(ended.argv);
        }
        self.expected = more_expected;
        Ok(())
    }
}

struct Word {
    text: String,
    is_quoted: bool,
    /// It contains a variable or a pattern.
    is_expanded: bool,
    is_assignment: bool,
}

enum Token {
    Word(Word),
    Redirection,
    Separator,
    Joiner,
    End,
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Reader<'_> {
    fn next_token(&mut self) -> Result<Token, ShellError> {
        self.skip_blanks();
        let Some(next) = self.rest.peek().copied() else { return Ok(Token::End) };
        match next {
            '\n' | ';' => self.separator(),
            '&' => self.ampersand(),
            '|' => self.pipe(),
            '<' | '>' => self.redirection(),
            '(' | ')' => Err(ShellError::Unsupported("a subshell")),
            _ => self.word(),
        }
    }

    fn skip_blanks(&mut self) {
        while let Some(next) = self.rest.peek().copied() {
            match next {
                ' ' | '\t' | '\r' => drop(self.rest.next()),
                '#' => while self.rest.next_if(|c| *c != '\n').is_some() {},
                '\\' => {
                    // It is blank only before a newline. A word may start with a backslash too.
                    let mut ahead = self.rest.clone();
                    ahead.next();
                    if ahead.next() != Some('\n') {
                        return;
                    }
                    self.rest.next();
                    self.rest.next();
                }
                _ => return,
            }
        }
    }

    fn separator(&mut self) -> Result<Token, ShellError> {
        let first = self.rest.next();
        match (first, self.rest.peek()) {
            (Some(';'), Some(';' | '&')) => Err(ShellError::Unsupported("a case")),
            _ => Ok(Token::Separator),
        }
    }

    fn ampersand(&mut self) -> Result<Token, ShellError> {
        self.rest.next();
        match self.rest.peek() {
            Some('&') => {
                self.rest.next();
                Ok(Token::Joiner)
            }
            // `&>` sends both outputs to a file.
            Some('>') => self.redirection(),
            _ => Ok(Token::Separator),
        }
    }

    fn pipe(&mut self) -> Result<Token, ShellError> {
        self.rest.next();
        self.rest.next_if(|next| matches!(next, '|' | '&'));
        Ok(Token::Joiner)
    }

    fn redirection(&mut self) -> Result<Token, ShellError> {
        let first = self.rest.next();
        match (first, self.rest.peek()) {
            (Some('<'), Some('<')) => return Err(ShellError::Unsupported("a here-document")),
            (_, Some('(')) => return Err(ShellError::Unsupported("a process substitution")),
            (Some('<'), Some('>' | '&')) | (Some('>'), Some('>' | '&' | '|')) => drop(self.rest.next()),
            _ => {}
        }
        match self.rest.peek() {
            Some('(') => Err(ShellError::Unsupported("a process substitution")),
            _ => Ok(Token::Redirection),
        }
    }

    fn word(&mut self) -> Result<Token, ShellError> {
        let mut word = Word { text: String::new(), is_quoted: false, is_expanded: false, is_assignment: false };
        let mut plain_name = true;
        while let Some(next) = self.rest.peek().copied() {
            match next {
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' => break,
                '<' | '>' => {
                    // Digits right before it name a descriptor and are not a word.
                    if !word.is_quoted && !word.text.is_empty() && word.text.bytes().all(|b| b.is_ascii_digit()) {
                        return self.redirection();
                    }
                    break;
                }
                '(' | ')' => return Err(ShellError::Unsupported("a function or subshell")),
                '`' => return Err(ShellError::Unsupported("a command substitution")),
                '$' => self.dollar(&mut word)?,
                '\'' => self.single_quoted(&mut word)?,
                '"' => self.double_quoted(&mut word)?,
                '\\' => {
                    self.rest.next();
                    match self.rest.next() {
                        Some('\n') => {}
                        Some(escaped) => word.text.push(escaped),
                        None => return Err(ShellError::Incomplete),
                    }
                    word.is_quoted = true;
                }
                '*' | '?' | '[' | '{' | '~' => {
                    word.is_expanded = true;
                    word.text.push(next);
                    self.rest.next();
                }
                other => {
                    if other == '=' && plain_name && is_name(&word.text) && !word.is_quoted {
                        word.is_assignment = true;
                    }
                    plain_name &= other != '=';
                    word.text.push(other);
                    self.rest.next();
                }
            }
        }
        Ok(Token::Word(word))
    }

    /// A plain variable stays as written. Everything else after a dollar could run commands.
    fn dollar(&mut self, word: &mut Word) -> Result<(), ShellError> {
        self.rest.next();
        word.text.push('$');
        match self.rest.peek() {
            Some('(' | '[') => Err(ShellError::Unsupported("a command substitution")),
            Some('{') => Err(ShellError::Unsupported("a parameter expansion")),
            Some('\'' | '"') => Err(ShellError::Unsupported("a quote after a dollar")),
            _ => {
                word.is_expanded = true;
                Ok(())
            }
        }
    }

    fn single_quoted(&mut self, word: &mut Word) -> Result<(), ShellError> {
        self.rest.next();
        word.is_quoted = true;
        loop {
            match self.rest.next() {
                Some('\'') => return Ok(()),
                Some(inside) => word.text.push(inside),
                None => return Err(ShellError::OpenQuote),
            }
        }
    }

    fn double_quoted(&mut self, word: &mut Word) -> Result<(), ShellError> {
        self.rest.next();
        word.is_quoted = true;
        while let Some(next) = self.rest.peek().copied() {
            match next {
                '`' => return Err(ShellError::Unsupported("a command substitution")),
                '$' => {
                    self.rest.next();
                    word.text.push('$');
                    if matches!(self.rest.peek(), Some('(' | '{' | '[')) {
                        return Err(ShellError::Unsupported("a substitution"));
                    }
                    word.is_expanded = true;
                    continue;
                }
                '"' => {
                    self.rest.next();
                    return Ok(());
                }
                '\\' => {
                    self.rest.next();
                    match self.rest.next() {
                        Some(escaped @ ('$' | '`' | '"' | '\\')) => word.text.push(escaped),
                        Some('\n') => {}
                        Some(other) => word.text.extend(['\\', other]),
                        None => return Err(ShellError::OpenQuote),
                    }
                    continue;
                }
                inside => word.text.push(inside),
            }
            self.rest.next();
        }
        Err(ShellError::OpenQuote)
    }
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    let begins = bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
    begins && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(line: &str) -> Result<Vec<String>, ShellError> {
        Ok(commands_of(line)?.into_iter().map(|argv| argv[0].clone()).collect())
    }

    #[test]
    fn every_command_of_a_line_is_found() {
        for (line, expected) in [
            ("ls -l", &["ls"][..]),
            ("cd /x && make -j2 || echo 'no luck; rm -rf /'", &["cd", "make", "echo"]),
            ("A=1 B=\"x y\" env | sort > out.txt 2>&1", &["env", "sort"]),
            ("sleep 1 & echo done\nwhoami # rm", &["sleep", "echo", "whoami"]),
            ("\"git\" st'at'us", &["git"]),
            ("g\\it log", &["git"]),
            ("echo $HOME *.txt ~ \"$USER\"", &["echo"]),
            ("A=1; true", &["true"]),
            ("echo a\\\n b", &["echo"]),
            ("cmd &> log", &["cmd"]),
            ("3>x ls", &["ls"]),
            ("ls;", &["ls"]),
        ] {
            assert_eq!(names(line).unwrap(), expected, "{line}");
        }
        assert_eq!(commands_of("echo 'a b' \"c\\\"d\" e\\ f").unwrap()[0], ["echo", "a b", "c\"d", "e f"]);
    }

    #[test]
    fn what_cannot_be_read_for_certain_is_refused() {
        for line in [
            "echo $(rm x)",
            "echo `rm x`",
            "echo \"$(rm x)\"",
            "$CMD x",
            "r* x",
            "\"$X\" y",
            "if true; then rm x; fi",
            "for x in a; do rm $x; done",
            "f() { rm x; }",
            "(rm x)",
            "{ rm x; }",
            "cat <<EOF\nrm\nEOF",
            "cat <(rm x)",
            "echo > >(rm x)",
            "echo ${X:-$(rm)}",
            "echo $'a'",
            "'open",
            "\"open",
            "a &&",
            "| a",
            "a || || b",
            "",
            "  ",
            "# only",
            "a >",
            "! rm x",
            "x\\",
            "while :; do :; done",
            "echo \"`rm`\"",
            "''",
            "echo $[1]",
            "a;;b",
        ] {
            assert!(commands_of(line).is_err(), "{line:?} was read as {:?}", commands_of(line));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            if let Ok(commands) = commands_of(&text) {
                prop_assert!(commands.iter().all(|argv| !argv.is_empty() && !argv[0].is_empty()));
            }
        }

        #[test]
        fn quoting_hides_nothing_and_adds_nothing(words in proptest::collection::vec("[ a-z$`;&|<>(){}*?#!~=\"]{1,8}", 1..5)) {
            let line = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
            prop_assert_eq!(commands_of(&line).unwrap(), vec![words]);
        }
    }
}
