//! `.dockerignore`: which files of a context stay out of a build.
//!
//! Every file of a context is compared with every rule, so both the rules and what is in them have limits.

use super::words::Pattern;

/// More rules than any honest file has.
pub const MAX_RULES: usize = 10_000;
/// What they may take together.
pub const MAX_IGNORE_BYTES: usize = 256 << 10;
/// The longest path is not longer.
const MAX_PATTERN_BYTES: usize = 4096;

/// Why rules cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Too many.
    #[error("there are more than {MAX_RULES} rules")]
    Rules,
    /// Too long together.
    #[error("the rules have more than {MAX_IGNORE_BYTES} bytes")]
    Bytes,
    /// One is too long.
    #[error("a pattern has more than {MAX_PATTERN_BYTES} bytes")]
    Long,
}

/// The rules of a file, in order: the last one that fits counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoreRules {
    rules: Vec<(bool, Pattern)>,
}

impl IgnoreRules {
    /// Reads the file's text. A line that means nothing is no error, as with Docker.
    ///
    /// # Errors
    /// When there is more of it than can be compared with every file.
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

    /// Whether a path of the context, without a leading slash, stays out.
    pub fn ignores(&self, path: &str) -> bool {
        if self.rules.is_empty() {
            return false;
        }
        let path: Vec<char> = path.chars().collect();
        let last = self.rules.iter().rev().find(|(_, pattern)| pattern.matches_or_leads_to(&path));
        last.is_some_and(|(ignores, _)| *ignores)
    }

    /// Whether something below an ignored directory may be wanted all the same.
    pub fn has_exceptions(&self) -> bool {
        self.rules.iter().any(|(ignores, _)| !ignores)
    }
}

/// Patterns of which any may fit, such as those of `--exclude`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    patterns: Vec<Pattern>,
}

impl Patterns {
    /// Reads them.
    ///
    /// # Errors
    /// As with [`IgnoreRules::parse`].
    pub fn parse(texts: &[String]) -> Result<Self, PatternError> {
        if texts.len() > MAX_RULES {
            return Err(PatternError::Rules);
        }
        if texts.iter().map(String::len).sum::<usize>() > MAX_IGNORE_BYTES {
            return Err(PatternError::Bytes);
        }
        Ok(Self { patterns: texts.iter().map(|text| read_pattern(text)).collect::<Result<_, _>>()? })
    }

    /// Whether one of them fits a path.
    pub fn match_any(&self, path: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(path))
    }
}

/// A pattern of a sensible length.
///
/// # Errors
/// When it is longer.
pub fn read_pattern(text: &str) -> Result<Pattern, PatternError> {
    match text.len() > MAX_PATTERN_BYTES {
        true => Err(PatternError::Long),
        false => Ok(Pattern::new(text)),
    }
}
