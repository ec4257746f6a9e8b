//! Variables, quotes and escapes in a word of a Dockerfile.

/// Why a word cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// `${` without its `}`.
    #[error("a ${{ has no }}")]
    Unclosed,
    /// Something after the name that is not known.
    #[error("{0:?} is no way to expand a variable")]
    Modifier(String),
    /// `${name:?message}` and there is no such variable.
    #[error("{name}: {message}")]
    Missing {
        /// Of the variable.
        name: String,
        /// What its author says.
        message: String,
    },
    /// A default within a default within a default, too often.
    #[error("variables are nested too deeply")]
    Deep,
}

/// How deeply defaults may be nested.
const DEPTH: usize = 16;

/// Puts in the values of variables and takes the quotes away. A variable that is not set gives nothing.
///
/// # Errors
/// When an expansion is not understood, or one insists on a variable that is not set.
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

/// The value of what follows a `$`, and how long that is.
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

/// Where the brace closes, past those that open in between.
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
