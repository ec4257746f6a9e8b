//! Text that a sandbox chose, for people and models: nothing in it steers a terminal.

use std::fmt::Write as _;

/// The same text, with control characters and marks that turn the order of letters around written as escapes, such as
/// `\u{1b}`. Line feeds and tabs stay, and colours are left out.
pub(crate) fn visible(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut parts = text.split('\u{1b}');
    push_visible(&mut safe, parts.next().unwrap_or_default());
    for part in parts {
        match after_colour(part) {
            Some(rest) => push_visible(&mut safe, rest),
            None => {
                safe.push_str("\\u{1b}");
                push_visible(&mut safe, part);
            }
        }
    }
    safe
}

/// What comes after `[1;31m`.
fn after_colour(text: &str) -> Option<&str> {
    let (numbers, rest) = text.strip_prefix('[')?.split_once('m')?;
    numbers.bytes().all(|byte| byte.is_ascii_digit() || byte == b';').then_some(rest)
}

fn push_visible(safe: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '\n' | '\t' => safe.push(character),
            '\r' => safe.push_str("\\r"),
            _ if is_unsafe(character) => drop(write!(safe, "\\u{{{:x}}}", u32::from(character))),
            _ => safe.push(character),
        }
    }
}

fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e007f}')
}

/// The beginning of a text, at most this many bytes of it.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_shown_and_languages_stay() {
        assert_eq!(
            visible("a\u{1b}[2J\r\nb\tc\u{9b}\u{202e}\u{e0041}"),
            "a\\u{1b}[2J\\r\nb\tc\\u{9b}\\u{202e}\\u{e0041}"
        );
        for text in ["größe 数据 עברית", "👩\u{200d}💻 ⚠\u{fe0f}", "\u{fffd}"] {
            assert_eq!(visible(text), text);
        }
    }

    #[test]
    fn colours_are_left_out_and_nothing_else_of_a_terminal() {
        assert_eq!(visible("\u{1b}[1;31mred\u{1b}[0m\u{1b}[m \u{1b}[31;8Hm\u{1b}"), "red \\u{1b}[31;8Hm\\u{1b}");
    }

    #[test]
    fn a_cut_leaves_whole_characters() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 9), "aé");
    }
}
