//! `.dockerignore`: which files of a context stay out of a build.

use super::words::glob_matches;

/// The rules of a file, in order: the last one that fits counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoreRules {
    rules: Vec<(bool, String)>,
}

impl IgnoreRules {
    /// Reads the file's text. A line that means nothing is no error, as with Docker.
    pub fn parse(text: &str) -> Self {
        let rules = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rule = |line: &str| {
            let (ignores, pattern) = match line.strip_prefix('!') {
                Some(pattern) => (false, pattern.trim()),
                None => (true, line),
            };
            let parts: Vec<&str> = pattern.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
            (ignores, parts.join("/"))
        };
        Self { rules: rules.map(rule).filter(|(_, pattern)| !pattern.is_empty()).collect() }
    }

    /// Whether a path of the context, without a leading slash, stays out.
    pub fn ignores(&self, path: &str) -> bool {
        let fits = |pattern: &str| {
            let parents = path.match_indices('/').map(|(index, _)| &path[..index]);
            parents.chain([path]).any(|part| glob_matches(pattern, part))
        };
        self.rules.iter().rev().find(|(_, pattern)| fits(pattern)).is_some_and(|(ignores, _)| *ignores)
    }

    /// Whether something below an ignored directory may be wanted all the same.
    pub fn has_exceptions(&self) -> bool {
        self.rules.iter().any(|(ignores, _)| !ignores)
    }
}
