//! Fuzz entry point for Dockerfiles and their content.

use super::{Dockerfile, IgnoreRules, expand, glob_matches, parse_trigger, split_words};

/// Parses a Dockerfile, and also expands every word and uses it as a pattern.
pub fn dockerfile(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(file) = Dockerfile::parse(&text) {
        assert!(!file.stages.is_empty());
        assert_eq!(file.stage(None), Some(file.stages.len() - 1));
    }
    let _ = parse_trigger(&text);
    if let Ok(rules) = IgnoreRules::parse(&text) {
        for path in ["a", "a/b.txt", "node_modules/x/y"] {
            let _ = rules.ignores(path);
        }
    }
    let lookup = |name: &str| (name.len() < 3).then(|| "value".to_owned());
    for word in split_words(&text, '\\') {
        let _ = expand(&word, '\\', &lookup);
        let _ = glob_matches(&word, "some/path/to/a file.txt");
    }
    let plain: String = text.chars().filter(|c| !matches!(c, '*' | '?' | '[' | '\\')).take(200).collect();
    assert!(glob_matches(&plain, &plain), "a plain name must match itself");
}
