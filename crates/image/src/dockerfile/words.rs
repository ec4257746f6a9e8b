//! Splits words like a shell, and matches patterns for file names.

/// Splits at blanks outside quotes. Quotes and escapes stay in the words, and [`super::expand`] processes them.
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

/// Whether a path matches a pattern. The path has no leading slash. `*` and `?` match within one name, `**` matches
/// across directories, and `[a-z]` matches one character of a set.
pub fn glob_matches(pattern: &str, path: &str) -> bool {
    Pattern::new(pattern).matches(path)
}

/// A pattern that is parsed once and used for many paths. See [`glob_matches`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The literal text that every matching path starts with.
    start: Vec<char>,
    rest: Vec<Piece>,
}

impl Pattern {
    /// Parses a pattern. Every text is a valid pattern.
    pub fn new(text: &str) -> Self {
        let text: Vec<char> = text.chars().collect();
        let (mut start, mut rest, mut index) = (Vec::new(), Vec::new(), 0);
        while index < text.len() {
            let (piece, length) = Piece::read(&text[index..]);
            match piece {
                Piece::Exactly(c) if rest.is_empty() => start.push(c),
                piece => rest.push(piece),
            }
            index += length;
        }
        Self { start, rest }
    }

    /// Whether the path matches.
    pub fn matches(&self, path: &str) -> bool {
        let path: Vec<char> = path.chars().collect();
        self.ends(&path).last() == Some(&true)
    }

    /// Whether the path, or one of the directories that lead to it, matches. Checks all of them in one pass.
    pub(super) fn matches_or_leads_to(&self, path: &[char]) -> bool {
        let is_name_end = |at: usize| path.get(at).is_none_or(|c| *c == '/');
        self.ends(path).iter().enumerate().any(|(at, reached)| *reached && at > 0 && is_name_end(at))
    }

    /// The positions in the path at which the pattern may end, or nothing if it does not match. There is no
    /// backtracking, so no pattern is slow.
    fn ends(&self, path: &[char]) -> Vec<bool> {
        if !path.starts_with(&self.start) {
            return Vec::new();
        }
        let mut places = vec![false; path.len() + 1];
        places[self.start.len()] = true;
        for piece in &self.rest {
            places = piece.advance(&places, path);
            if !places.contains(&true) {
                return Vec::new();
            }
        }
        places
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// `**/`: nothing, or complete directories.
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

    /// Advances in one pass over the path, so that the cost of several `**` in a row does not grow with a power of its
    /// length.
    fn advance(&self, places: &[bool], path: &[char]) -> Vec<bool> {
        let mut next = vec![false; places.len()];
        // Whether an earlier position is still active.
        let mut carried = false;
        for (at, reached) in places.iter().copied().enumerate() {
            let before = at.checked_sub(1).map(|index| path[index]);
            match self {
                Self::Directories => {
                    next[at] = reached || (carried && before == Some('/'));
                    carried |= reached;
                }
                Self::Anything => {
                    carried |= reached;
                    next[at] = carried;
                }
                Self::Name => {
                    carried = reached || (carried && before != Some('/'));
                    next[at] = carried;
                }
                one => {
                    if reached && path.get(at).is_some_and(|c| one.accepts(*c)) {
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

/// The set after `[`, and its length including the `]`.
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
