//! Words as a shell splits them, and patterns for file names.

/// Splits at blanks outside of quotes. Quotes and escapes stay in the words, for [`super::expand`] to understand.
pub fn split_words(text: &str, escape: char) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            c if c == escape && quote != Some('\'') => {
                word.push(c);
                word.extend(characters.next());
            }
            '\'' | '"' if quote == Some(c) => {
                quote = None;
                word.push(c);
            }
            '\'' | '"' if quote.is_none() => {
                quote = Some(c);
                word.push(c);
            }
            c if c.is_whitespace() && quote.is_none() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Whether a path without a leading slash fits a pattern: `*` and `?` stay within a name, `**` does not, `[a-z]` is one
/// character of a set.
pub fn glob_matches(pattern: &str, path: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let path: Vec<char> = path.chars().collect();
    // Each row tells where in the path the pattern so far may have come to; no backtracking, so no pattern is slow.
    let mut places: Vec<bool> = vec![false; path.len() + 1];
    places[0] = true;
    let mut index = 0;
    while index < pattern.len() {
        let (piece, length) = Piece::read(&pattern[index..]);
        places = piece.advance(&places, &path);
        index += length;
    }
    places[path.len()]
}

enum Piece {
    /// `**/`: nothing, or whole directories.
    Directories,
    /// `**`.
    Anything,
    /// `*`.
    Name,
    /// `?`.
    One,
    Set {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Exactly(char),
}

impl Piece {
    fn read(pattern: &[char]) -> (Self, usize) {
        match pattern {
            ['*', '*', '/', ..] => (Self::Directories, 3),
            ['*', '*', ..] => (Self::Anything, 2),
            ['*', ..] => (Self::Name, 1),
            ['?', ..] => (Self::One, 1),
            ['\\', c, ..] => (Self::Exactly(*c), 2),
            ['[', rest @ ..] => read_set(rest).map_or((Self::Exactly('['), 1), |(set, length)| (set, length + 1)),
            [c, ..] => (Self::Exactly(*c), 1),
            [] => (Self::Anything, 1),
        }
    }

    fn advance(&self, places: &[bool], path: &[char]) -> Vec<bool> {
        let mut next = vec![false; places.len()];
        for (at, _) in places.iter().enumerate().filter(|(_, reached)| **reached) {
            match self {
                Self::Directories => {
                    next[at] = true;
                    (at..path.len()).filter(|index| path[*index] == '/').for_each(|index| next[index + 1] = true);
                }
                Self::Anything => next[at..].fill(true),
                Self::Name => {
                    let end = path[at..].iter().position(|c| *c == '/').map_or(path.len(), |length| at + length);
                    next[at..=end].fill(true);
                }
                one => {
                    if path.get(at).is_some_and(|c| one.accepts(*c)) {
                        next[at + 1] = true;
                    }
                }
            }
        }
        next
    }

    fn accepts(&self, c: char) -> bool {
        match self {
            Self::One => c != '/',
            Self::Set { negated, ranges } => {
                c != '/' && ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
            Self::Exactly(wanted) => c == *wanted,
            _ => false,
        }
    }
}

/// What follows `[`, and how long it is with its `]`.
fn read_set(text: &[char]) -> Option<(Piece, usize)> {
    let negated = matches!(text.first(), Some('^' | '!'));
    let mut at = usize::from(negated);
    let mut ranges = Vec::new();
    while let Some(c) = text.get(at) {
        match (c, text.get(at + 1), text.get(at + 2)) {
            (']', _, _) if !ranges.is_empty() => return Some((Piece::Set { negated, ranges }, at + 1)),
            (low, Some('-'), Some(high)) if *high != ']' => {
                ranges.push((*low, *high));
                at += 3;
            }
            (c, _, _) => {
                ranges.push((*c, *c));
                at += 1;
            }
        }
    }
    None
}
