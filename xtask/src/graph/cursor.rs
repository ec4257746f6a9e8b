//! A position among the tokens of a file, and the few constructs that are parsed as a whole: attributes, paths, `use`,
//! and items that only tests have.

use std::collections::BTreeSet;
use std::path::Path;

use super::tokens::{Kind, Token};

/// A position among the tokens of a file.
pub(crate) struct Cursor<'a> {
    tokens: &'a [Token],
    pub(crate) at: usize,
    pub(crate) file: &'a Path,
    /// Lines that only tests have.
    pub(crate) test_lines: BTreeSet<usize>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(tokens: &'a [Token], file: &'a Path) -> Self {
        Self { tokens, at: 0, file, test_lines: BTreeSet::new() }
    }

    pub(crate) fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    pub(crate) fn word_at(&self, ahead: usize) -> Option<&'a str> {
        self.tokens.get(self.at + ahead).and_then(Token::word)
    }

    pub(crate) fn is_at(&self, ahead: usize, sign: char) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(|token| token.is(sign))
    }

    pub(crate) fn before(&self, back: usize, is: impl Fn(&Token) -> bool) -> bool {
        self.at.checked_sub(back).and_then(|at| self.tokens.get(at)).is_some_and(is)
    }

    pub(crate) fn take(&mut self, sign: char) -> bool {
        let taken = self.is_at(0, sign);
        self.at += usize::from(taken);
        taken
    }

    pub(crate) fn take_path(&mut self) -> bool {
        let taken = self.peek().is_some_and(|token| token.kind == Kind::Path);
        self.at += usize::from(taken);
        taken
    }

    /// Parses all attributes at this position.
    pub(crate) fn attributes(&mut self) -> Attributes {
        let mut attributes = Attributes::default();
        while self.is_at(0, '#') && (self.is_at(1, '[') || (self.is_at(1, '!') && self.is_at(2, '['))) {
            let start = self.at;
            self.at += 1 + usize::from(self.is_at(1, '!'));
            self.skip_group();
            attributes.note(&self.tokens[start..self.at]);
        }
        attributes
    }

    /// Skips `pub`, `pub(crate)`, `pub(in crate::store)`, because visibility is not a use.
    pub(crate) fn skip_visibility(&mut self) {
        if self.word_at(0) != Some("pub") {
            return;
        }
        self.at += 1;
        if self.is_at(0, '(') && ["crate", "super", "self", "in"].map(Some).contains(&self.word_at(1)) {
            self.skip_group();
        }
    }

    /// Skips from an opening bracket of any kind to after its closing one.
    fn skip_group(&mut self) {
        let mut depth = 0_usize;
        while let Some(token) = self.peek() {
            self.at += 1;
            match token.kind {
                Kind::Sign('(' | '[' | '{') => depth += 1,
                Kind::Sign(')' | ']' | '}') => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Skips an item that only tests have, and removes its lines from the count.
    pub(crate) fn skip_item(&mut self, first_line: usize) {
        let ending = Ending::of(self);
        while let Some(token) = self.peek() {
            match token.kind {
                Kind::Sign('{') if ending == Ending::Block => {
                    self.skip_group();
                    break;
                }
                Kind::Sign('(' | '[' | '{') => self.skip_group(),
                // The end of the enclosing item, which is not its own.
                Kind::Sign(')' | ']' | '}') => break,
                Kind::Sign(';') => {
                    self.at += 1;
                    break;
                }
                Kind::Sign(',') if ending == Ending::Comma => {
                    self.at += 1;
                    break;
                }
                _ => self.at += 1,
            }
        }
        let last_line = self.tokens[..self.at].last().map_or(first_line, |token| token.last_line);
        self.test_lines.extend(first_line..=last_line);
    }

    /// Parses `a::b::c`, without what follows in angle brackets or braces.
    pub(crate) fn path(&mut self) -> Vec<String> {
        let mut words = Vec::new();
        while let Some(word) = self.word_at(0) {
            words.push(word.to_owned());
            self.at += 1;
            let goes_on = self.tokens.get(self.at + 1).is_some_and(|token| token.word().is_some());
            if !(goes_on && self.take_path()) {
                break;
            }
        }
        words
    }

    /// Parses what follows `use`, or the braces in one, into a list of single paths.
    pub(crate) fn use_tree(&mut self, above: &[String], imports: &mut Vec<Import>) {
        self.take_path();
        let line = self.peek().map_or(0, |token| token.line);
        let mut path = above.to_vec();
        path.extend(self.path());
        if self.take_path() {
            if self.take('{') {
                while !self.is_at(0, '}') && self.peek().is_some() {
                    self.use_tree(&path, imports);
                    self.take(',');
                }
                self.take('}');
                return;
            }
            self.take('*');
            imports.push(Import { name: "*".to_owned(), path, line });
            return;
        }
        if self.take('{') {
            self.at -= 1;
            self.skip_group();
            return;
        }
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if self.word_at(0) == Some("as") {
            name = self.word_at(1).unwrap_or_default().to_owned();
            self.at += 2;
        }
        imports.push(Import { name, path, line });
    }
}

/// The relevant attributes of an item.
#[derive(Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) test: bool,
    pub(crate) macro_use: bool,
    pub(crate) path: Option<String>,
}

/// One name that a `use` imports.
pub(crate) struct Import {
    pub(crate) name: String,
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

impl Attributes {
    /// Evaluates one attribute, from its `#` to its bracket.
    fn note(&mut self, tokens: &[Token]) {
        let words: Vec<&str> = tokens.iter().filter_map(Token::word).collect();
        let text = tokens.iter().find_map(|token| match &token.kind {
            Kind::Text(text) => Some(text.as_str()),
            _ => None,
        });
        match words.as_slice() {
            ["test" | "cfg", ..] if is_test_only(&words, text) => self.test = true,
            ["path"] => self.path = text.map(str::to_owned),
            ["macro_use"] => self.macro_use = true,
            _ => {}
        }
    }
}

/// Whether only tests and fuzzing compile an item with this attribute.
fn is_test_only(words: &[&str], text: Option<&str>) -> bool {
    match words {
        ["test"] | ["cfg", "test"] | ["cfg", "all", "test", ..] => true,
        ["cfg", "feature"] => text == Some("fuzzing"),
        _ => false,
    }
}

/// How an item ends, other than with a semicolon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// With its braces: a function, a type, a module, a macro call.
    Block,
    /// Only with the semicolon, possibly after braces.
    Semicolon,
    /// With a comma: a field, a variant, an arm.
    Comma,
}

impl Ending {
    fn of(cursor: &Cursor<'_>) -> Self {
        if cursor.is_at(1, '!') {
            return Self::Block;
        }
        let mut words = cursor.tokens[cursor.at..].iter().take_while(|token| !token.is('{') && !token.is(';'));
        let first = words.find_map(|token| token.word().filter(|word| !["pub", "crate", "super", "in"].contains(word)));
        match first {
            Some("use" | "static" | "type" | "let") => Self::Semicolon,
            Some("const") if words.next().is_some_and(|token| !token.is_word("fn")) => Self::Semicolon,
            Some(
                "fn" | "impl" | "struct" | "enum" | "union" | "mod" | "trait" | "async" | "unsafe" | "const" | "extern",
            ) => Self::Block,
            _ => Self::Comma,
        }
    }
}
