//! Splits Rust source into tokens, without comments and the content of strings.
//!
//! It knows just enough of the language to find paths and items. `syn` would parse all of it, but would slow down the
//! first build of every `cargo xtask`.

/// One token with its lines, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) line: usize,
    /// Differs from `line` only for strings.
    pub(crate) last_line: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or a keyword; raw ones without their `r#`.
    Word(String),
    /// A string of any kind, as written between its quotes.
    Text(String),
    /// A number, a character or a lifetime.
    Other,
    /// `::`
    Path,
    /// Any other character.
    Sign(char),
}

impl Token {
    pub(crate) fn is(&self, sign: char) -> bool {
        self.kind == Kind::Sign(sign)
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.word() == Some(word)
    }

    pub(crate) fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }
}

/// Splits `source`. An unterminated string or comment ends with the file.
pub(crate) fn tokenize(source: &str) -> Vec<Token> {
    let mut reader = Reader { rest: source, line: 1 };
    let mut tokens = Vec::new();
    while reader.skip_blank() {
        let line = reader.line;
        let kind = reader.next_kind();
        tokens.push(Token { kind, line, last_line: reader.line });
    }
    tokens
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Reader<'a> {
    /// Consumes the next `bytes`, and counts their lines.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        self.take(self.rest.find(|character| !wanted(character)).unwrap_or(self.rest.len()))
    }

    /// Skips whitespace and comments. Returns whether something follows.
    fn skip_blank(&mut self) -> bool {
        loop {
            self.take_while(char::is_whitespace);
            if self.rest.starts_with("//") {
                self.take_while(|character| character != '\n');
            } else if self.rest.starts_with("/*") {
                self.skip_block_comment();
            } else {
                return !self.rest.is_empty();
            }
        }
    }

    /// Block comments nest.
    fn skip_block_comment(&mut self) {
        let mut depth = 0_usize;
        while !self.rest.is_empty() {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2);
                if depth == 0 {
                    return;
                }
            } else {
                self.take_while(|character| !"/*".contains(character));
                if !self.rest.starts_with("/*") && !self.rest.starts_with("*/") && !self.rest.is_empty() {
                    self.take(1);
                }
            }
        }
    }

    fn next_kind(&mut self) -> Kind {
        if let Some(text) = self.prefixed_text() {
            return Kind::Text(text);
        }
        if self.rest.starts_with("r#") {
            self.take(2);
        }
        match self.rest.chars().next() {
            Some(first) if is_word_start(first) => Kind::Word(self.take_while(is_word_part).to_owned()),
            Some(first) if first.is_ascii_digit() => {
                self.take_while(is_word_part);
                Kind::Other
            }
            Some('"') => Kind::Text(self.quoted()),
            Some('\'') => {
                self.character_or_lifetime();
                Kind::Other
            }
            Some(':') if self.rest.starts_with("::") => {
                self.take(2);
                Kind::Path
            }
            Some(sign) => {
                self.take(sign.len_utf8());
                Kind::Sign(sign)
            }
            None => Kind::Other,
        }
    }

    /// A string with a prefix: `b"…"`, `c"…"`, `r"…"`, `r#"…"#`, `br#"…"#` and so on.
    fn prefixed_text(&mut self) -> Option<String> {
        let prefix = ["br", "cr", "r", "b", "c"].into_iter().find(|prefix| {
            let after = self.rest.strip_prefix(prefix);
            after.is_some_and(|after| after.trim_start_matches('#').starts_with('"'))
        })?;
        let hashes = self.rest[prefix.len()..].bytes().take_while(|byte| *byte == b'#').count();
        self.take(prefix.len() + hashes);
        if !prefix.contains('r') {
            return Some(self.quoted());
        }
        self.take(1);
        let end = format!("\"{}", "#".repeat(hashes));
        let length = self.rest.find(&end).unwrap_or(self.rest.len());
        let text = self.take(length).to_owned();
        self.take(end.len().min(self.rest.len()));
        Some(text)
    }

    /// From one double quote to the next that is not escaped.
    fn quoted(&mut self) -> String {
        self.take(1);
        let mut escaped = false;
        let end = self.rest.find(|character| {
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        });
        let text = self.take(end.unwrap_or(self.rest.len())).to_owned();
        self.take(1.min(self.rest.len()));
        text
    }

    /// `'a'` and `'\''` are characters, `'a` is a lifetime.
    fn character_or_lifetime(&mut self) {
        self.take(1);
        let mut following = self.rest.chars();
        match (following.next(), following.next()) {
            (Some('\\'), Some(escaped)) => {
                self.take(1 + escaped.len_utf8());
                self.take_while(|character| character != '\'');
                self.take(1.min(self.rest.len()));
            }
            (Some(character), Some('\'')) => {
                self.take(character.len_utf8() + 1);
            }
            _ => {
                self.take_while(is_word_part);
            }
        }
    }
}

fn is_word_start(character: char) -> bool {
    character == '_' || character.is_alphabetic()
}

fn is_word_part(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of `source` with their lines.
    fn words(source: &str) -> Vec<(String, usize)> {
        let tokens = tokenize(source);
        tokens.iter().filter_map(|token| Some((token.word()?.to_owned(), token.line))).collect()
    }

    fn texts(source: &str) -> Vec<String> {
        let tokens = tokenize(source).into_iter();
        let texts = tokens.filter_map(|token| match token.kind {
            Kind::Text(text) => Some(text),
            _ => None,
        });
        texts.collect()
    }

    fn of(pairs: &[(&str, usize)]) -> Vec<(String, usize)> {
        pairs.iter().map(|(word, line)| ((*word).to_owned(), *line)).collect()
    }

    #[test]
    fn comments_hold_no_words() {
        let source = "a // b\n/* c /* d */ e\n */ f /// g\n//! h\ni /**/ j /***/ k";
        assert_eq!(words(source), of(&[("a", 1), ("f", 3), ("i", 5), ("j", 5), ("k", 5)]));
    }

    #[test]
    fn strings_hold_no_words() {
        let source = r##"a "b \" c" d b"e" f r"\" g r#"h " i"# j br#"k"# l c"m" n"##;
        let found: Vec<String> = words(source).into_iter().map(|(word, _)| word).collect();
        assert_eq!(found, ["a", "d", "f", "g", "j", "l", "n"]);
        assert_eq!(texts(source), [r#"b \" c"#, "e", "\\", "h \" i", "k", "m"]);
    }

    #[test]
    fn a_string_counts_its_lines() {
        let tokens = tokenize("\"one\ntwo\\\n\" three");
        assert_eq!((tokens[0].line, tokens[0].last_line), (1, 3));
        assert_eq!(words("\"one\ntwo\\\n\" three"), of(&[("three", 3)]));
    }

    #[test]
    fn characters_are_not_lifetimes() {
        let source = r"a '{' b '\'' c '\\' d 'e f ' ' g '\u{7d}' h b'i' j";
        let found: Vec<String> = words(source).into_iter().map(|(word, _)| word).collect();
        assert_eq!(found, ["a", "b", "c", "d", "f", "g", "h", "b", "j"]);
        assert!(!tokenize(source).iter().any(|token| token.is('{') || token.is('}')));
    }

    #[test]
    fn raw_identifiers_and_words_that_begin_like_prefixes() {
        let found: Vec<String> =
            words("r#type break crate r b c raw::x 0x1f 1e5 _u").into_iter().map(|(w, _)| w).collect();
        assert_eq!(found, ["type", "break", "crate", "r", "b", "c", "raw", "x", "_u"]);
    }

    #[test]
    fn what_does_not_end_ends_with_the_file() {
        for source in ["\"a", "r#\"a\"", "/* a", "'", "'\\", "b\"", "r#", "/* a *", "\"\\"] {
            assert_eq!(words(source), [], "{source}");
        }
    }
}
