//! License expressions as SPDX defines them: `(MIT OR Apache-2.0) AND Unicode-3.0`.

/// A parsed expression.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// A license, with its exception if it has one: `Apache-2.0 WITH LLVM-exception`.
    License(String),
    /// All of them apply.
    And(Vec<Expression>),
    /// The user chooses one.
    Or(Vec<Expression>),
}

impl Expression {
    /// Parses an expression. Old crates separate alternatives by a slash.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let mut words = Words { words: text.split_whitespace().collect(), position: 0 };
        let parsed = words.alternatives()?;
        match words.peek() {
            None => Ok(parsed),
            Some(word) => Err(format!("{word:?} is not expected there")),
        }
    }

    /// Whether the licenses that are allowed are enough.
    pub(super) fn is_allowed(&self, allowed: &[&str]) -> bool {
        match self {
            Self::License(license) => allowed.contains(&license.as_str()),
            Self::And(all) => all.iter().all(|one| one.is_allowed(allowed)),
            Self::Or(any) => any.iter().any(|one| one.is_allowed(allowed)),
        }
    }
}

struct Words<'a> {
    words: Vec<&'a str>,
    position: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.position).copied()
    }

    fn next(&mut self) -> Result<&'a str, String> {
        let word = self.peek().ok_or("it ends too early")?;
        self.position += 1;
        Ok(word)
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        self.position += usize::from(is_next);
        is_next
    }

    /// `OR` binds least.
    fn alternatives(&mut self) -> Result<Expression, String> {
        let mut any = vec![self.conjunction()?];
        while self.takes("OR") {
            any.push(self.conjunction()?);
        }
        Ok(if any.len() == 1 { any.remove(0) } else { Expression::Or(any) })
    }

    fn conjunction(&mut self) -> Result<Expression, String> {
        let mut all = vec![self.license()?];
        while self.takes("AND") {
            all.push(self.license()?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::And(all) })
    }

    fn license(&mut self) -> Result<Expression, String> {
        if self.takes("(") {
            let inner = self.alternatives()?;
            return if self.takes(")") { Ok(inner) } else { Err("a parenthesis is not closed".to_owned()) };
        }
        let license = self.identifier()?;
        if !self.takes("WITH") {
            return Ok(Expression::License(license));
        }
        Ok(Expression::License(format!("{license} WITH {}", self.identifier()?)))
    }

    fn identifier(&mut self) -> Result<String, String> {
        let word = self.next()?;
        let is_name = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.+:".contains(&byte));
        match is_name && !["AND", "OR", "WITH"].contains(&word) {
            true => Ok(word.to_owned()),
            false => Err(format!("{word:?} is not expected there")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn and_binds_more_than_or_and_parentheses_most() {
        let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"];
        for (text, is_allowed) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only AND LGPL-2.1-or-later", true),
            ("(MIT OR GPL-3.0-only) AND LGPL-2.1-or-later", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0 / GPL-3.0-only", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0-only", true),
            // An exception is not the license without it.
            ("Apache-2.0", false),
            ("MIT WITH Classpath-exception-2.0", false),
            ("((MIT))", true),
            ("LicenseRef-own", false),
        ] {
            assert_eq!(Expression::parse(text).unwrap().is_allowed(&allowed), is_allowed, "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_not_guessed_at() {
        for text in [
            "",
            "MIT OR",
            "OR MIT",
            "MIT Apache-2.0",
            "(MIT",
            "MIT)",
            "MIT AND",
            "MIT WITH",
            "see LICENSE",
            "MIT or X",
            "A,B",
        ] {
            assert!(Expression::parse(text).is_err(), "{text:?}");
        }
    }
}
