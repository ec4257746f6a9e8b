//! Here-documents in RUN, COPY and ADD.

/// A text inside the Dockerfile itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heredoc {
    /// The word that ends it. For COPY this is also the name of the file.
    pub name: String,
    pub body: String,
    /// Whether variables are expanded. False if the word is quoted.
    pub expands: bool,
    pub(super) strips_tabs: bool,
}

/// The here-documents that a line opens. Their bodies are still empty.
pub(super) fn openings(text: &str) -> Vec<Heredoc> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut quote = None;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '\\') => {
                rest = after.get(after.chars().next().map_or(0, char::len_utf8)..).unwrap_or_default();
                continue;
            }
            (None, '<') if rest.starts_with("<<<") => {
                rest = &rest[3..];
                continue;
            }
            (None, '<') if rest.starts_with("<<") => {
                if let Some((heredoc, length)) = opening(&rest[2..]) {
                    found.push(heredoc);
                    rest = &rest[2 + length..];
                    continue;
                }
            }
            _ => {}
        }
        rest = after;
    }
    found
}

/// The here-document after `<<`, and the length of its opening.
fn opening(text: &str) -> Option<(Heredoc, usize)> {
    let strips_tabs = text.starts_with('-');
    let word = text.strip_prefix('-').unwrap_or(text);
    let skipped = text.len() - word.len();
    let quote = word.chars().next().filter(|c| matches!(c, '\'' | '"'));
    let inner = quote.map_or(word, |quote| word.strip_prefix(quote).unwrap_or(word));
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let length = inner.find(|c| !is_word(c)).unwrap_or(inner.len());
    let name = &inner[..length];
    let quotes = match quote {
        Some(quote) if inner[length..].starts_with(quote) => 2,
        Some(_) => return None,
        None => 0,
    };
    let starts_well = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let heredoc = Heredoc { name: name.to_owned(), body: String::new(), expands: quote.is_none(), strips_tabs };
    starts_well.then_some((heredoc, skipped + length + quotes))
}
