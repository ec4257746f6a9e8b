//! Expands variables, quotes and escapes in a word of a Dockerfile.

/// Why a word cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// `${` without its `}`.
    #[error("a ${{ has no closing }}")]
    Unclosed,
    /// The modifier after the name is unknown.
    #[error("{0:?} is not a supported form of variable expansion")]
    Modifier(String),
    /// `${name:?message}` with a variable that is not set.
    #[error("{name}: {message}")]
    Missing {
        /// The name of the variable.
        name: String,
        /// The message from the Dockerfile.
        message: String,
    },
    /// Default values are nested too deeply.
    #[error("variables are nested too deeply")]
    Deep,
}

/// How deeply default values may be nested.
const DEPTH: usize = 16;

/// Replaces variables with their values and removes the quotes. A variable that is not set expands to nothing.
///
/// # Errors
/// If an expansion is not supported, or if it requires a variable that is not set.
pub fn expand(text: &str, escape: char, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, ExpandError> {
    expand_at(text, escape, lookup, DEPTH)
}

fn expand_at(
    text: &str,
    escape: char,
    lookup: &dyn Fn(&str) -> Option<String>,
    depth: usize,
) -> Result<String, ExpandError> {
    let mut out = String::new();
    let mut quote = None;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (quote, c) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), c) => out.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (_, c) if c == escape => {
                let next = rest.chars().next();
                let keeps = quote == Some('"') && !next.is_some_and(|next| matches!(next, '"' | '$') || next == escape);
                if keeps || next.is_none() {
                    out.push(c);
                }
                out.extend(next);
                rest = &rest[next.map_or(0, char::len_utf8)..];
            }
            (_, '$') => {
                let (value, length) = variable(rest, escape, lookup, depth)?;
                out.push_str(&value);
                rest = &rest[length..];
            }
            (_, c) => out.push(c),
        }
    }
    Ok(out)
}

/// The value of the variable after a `$`, and the length of its name.
fn variable(
    text: &str,
    escape: char,
    lookup: &dyn Fn(&str) -> Option<String>,
    depth: usize,
) -> Result<(String, usize), ExpandError> {
    if let Some(inner) = text.strip_prefix('{') {
        let length = closing(inner).ok_or(ExpandError::Unclosed)?;
        let value = braced(&inner[..length], escape, lookup, depth)?;
        return Ok((value, length + 2));
    }
    match name_length(text) {
        0 => Ok(("$".to_owned(), 0)),
        length => Ok((lookup(&text[..length]).unwrap_or_default(), length)),
    }
}

fn braced(
    inner: &str,
    escape: char,
    lookup: &dyn Fn(&str) -> Option<String>,
    depth: usize,
) -> Result<String, ExpandError> {
    let (name, modifier) = inner.split_at(name_length(inner));
    let value = lookup(name);
    if modifier.is_empty() && !name.is_empty() {
        return Ok(value.unwrap_or_default());
    }
    let (counts_empty, operator) = match modifier.strip_prefix(':') {
        Some(rest) => (true, rest),
        None => (false, modifier),
    };
    let depth = depth.checked_sub(1).ok_or(ExpandError::Deep)?;
    let word = |text: &str| expand_at(text, escape, lookup, depth);
    let is_set = value.as_ref().is_some_and(|value| !counts_empty || !value.is_empty());
    match operator.chars().next().filter(|_| !name.is_empty()) {
        Some('-') if is_set => Ok(value.unwrap_or_default()),
        Some('-') => word(&operator[1..]),
        Some('+') if is_set => word(&operator[1..]),
        Some('+') => Ok(String::new()),
        Some('?') if is_set => Ok(value.unwrap_or_default()),
        Some('?') => Err(ExpandError::Missing { name: name.to_owned(), message: word(&operator[1..])? }),
        _ => Err(ExpandError::Modifier(format!("${{{inner}}}"))),
    }
}

fn name_length(text: &str) -> usize {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if starts_well { text.find(|c| !is_part(c)).unwrap_or(text.len()) } else { 0 }
}

/// The position of the closing brace, skipping nested ones.
fn closing(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (index, c) in text.char_indices() {
        match c {
            '{' => open += 1,
            '}' if open == 0 => return Some(index),
            '}' => open -= 1,
            _ => {}
        }
    }
    None
}
