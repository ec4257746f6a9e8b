//! `.dockerignore`: which files of a context are left out of a build.
//!
//! Every file of a context is compared with every rule, so the number of rules and their length have limits.

use super::words::Pattern;

/// More rules than any real file has.
pub const MAX_RULES: usize = 10_000;
/// The maximum size of all rules together.
pub const MAX_IGNORE_BYTES: usize = 256 << 10;
/// The maximum length of a pattern. No path is longer.
const MAX_PATTERN_BYTES: usize = 4096;

/// Why rules cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// There are too many rules.
    #[error("there are more than {MAX_RULES} rules")]
    Rules,
    /// The rules are too long in total.
    #[error("the rules have more than {MAX_IGNORE_BYTES} bytes")]
    Bytes,
    /// A pattern is too long.
    #[error("a pattern has more than {MAX_PATTERN_BYTES} bytes")]
    Long,
}

/// The rules of a file, in order. The last one that matches counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoreRules {
    rules: Vec<(bool, Pattern)>,
}

impl IgnoreRules {
    /// Parses the text of the file. As with Docker, a meaningless line is not an error.
    ///
    /// # Errors
    /// If there is too much to compare with every file.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.len() > MAX_IGNORE_BYTES {
            return Err(PatternError::Bytes);
        }
        let mut rules = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (ignores, pattern) = match line.strip_prefix('!') {
                Some(pattern) => (false, pattern.trim()),
                None => (true, line),
            };
            let parts: Vec<&str> = pattern.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
            if parts.is_empty() {
                continue;
            }
            if rules.len() >= MAX_RULES {
                return Err(PatternError::Rules);
            }
            rules.push((ignores, read_pattern(&parts.join("/"))?));
        }
        Ok(Self { rules })
    }

    /// Whether a path of the context is left out. The path has no leading slash.
    pub fn ignores(&self, path: &str) -> bool {
        if self.rules.is_empty() {
            return false;
        }
        let path: Vec<char> = path.chars().collect();
        let last = self.rules.iter().rev().find(|(_, pattern)| pattern.matches_or_leads_to(&path));
        last.is_some_and(|(ignores, _)| *ignores)
    }

    /// Whether files below an ignored directory may still be included.
    pub fn has_exceptions(&self) -> bool {
        self.rules.iter().any(|(ignores, _)| !ignores)
    }
}

/// A list of patterns, such as those of `--exclude`. A path matches if any of them matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    patterns: Vec<Pattern>,
}

impl Patterns {
    /// Parses the patterns.
    ///
    /// # Errors
    /// The same as for [`IgnoreRules::parse`].
    pub fn parse(texts: &[String]) -> Result<Self, PatternError> {
        if texts.len() > MAX_RULES {
            return Err(PatternError::Rules);
        }
        if texts.iter().map(String::len).sum::<usize>() > MAX_IGNORE_BYTES {
            return Err(PatternError::Bytes);
        }
        Ok(Self { patterns: texts.iter().map(|text| read_pattern(text)).collect::<Result<_, _>>()? })
    }

    /// Whether one of them matches the path.
    pub fn match_any(&self, path: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(path))
    }
}

/// Parses a pattern of limited length.
///
/// # Errors
/// If it is too long.
pub fn read_pattern(text: &str) -> Result<Pattern, PatternError> {
    match text.len() > MAX_PATTERN_BYTES {
        true => Err(PatternError::Long),
        false => Ok(Pattern::new(text)),
    }
}
