//! Text that somebody else chose, made safe to print.
//!
//! Names, metadata, messages and log lines come from sandboxes, servers and stores. On a terminal they could move the
//! cursor, rename the window, turn the order of letters around or hide some of them, and so show something that is not
//! there. What a program printed for the person who ran it (`exec`, `run`, `repl`, a file to standard output) is
//! not for this: it goes out as it is, as with docker.

use std::fmt::Write as _;

/// One line of text, with nothing in it that a terminal would act on or that nobody could see. What was taken out is
/// shown as an escape, such as `\u{202e}`; a tab becomes a space.
pub(crate) fn printable(text: &str) -> String {
    escape(
        text,
        |_| false,
        |character, safe| match character {
            '\t' => safe.push(' '),
            '\n' | '\r' => safe.extend(character.escape_default()),
            // Writing to a string cannot fail.
            other => drop(write!(safe, "\\u{{{:x}}}", u32::from(other))),
        },
    )
}

/// As [`printable`], of several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// JSON that says the same, with the same things escaped as JSON escapes them.
pub(crate) fn printable_json(text: &str) -> String {
    // Outside of strings there are only line breaks and letters of JSON's own.
    escape(
        text,
        |character| character == '\n',
        |character, safe| {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                let _ = write!(safe, "\\u{unit:04x}");
            }
        },
    )
}

fn escape(text: &str, is_kept: impl Fn(char) -> bool, put: impl Fn(char, &mut String)) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut before = ' ';
    for character in text.chars() {
        if is_kept(character) || !is_unsafe(character) || joins_symbols(before, character) {
            safe.push(character);
        } else {
            put(character, &mut safe);
        }
        before = character;
    }
    safe
}

/// Controls, marks of direction, line breaks of Unicode's own, and everything that is drawn as nothing.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Symbols such as ⚠️ consist of several characters, of which the later ones are drawn as nothing.
fn joins_symbols(before: char, character: char) -> bool {
    matches!(character, '\u{200d}' | '\u{fe0e}' | '\u{fe0f}')
        && before >= '\u{2190}'
        && (!is_unsafe(before) || before == '\u{fe0f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_steer_the_terminal_nor_hide_in_it() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc\td\u{9b}\u{7f}"), "a\\u{1b}[2Jb\\r\\nc d\\u{9b}\\u{7f}");
        assert_eq!(printable("gpj\u{202e}exe.\u{2066}\u{200b}\u{feff}"), "gpj\\u{202e}exe.\\u{2066}\\u{200b}\\u{feff}");
        assert_eq!(printable("a\u{200d}b\u{fe0f}\u{2028}"), "a\\u{200d}b\\u{fe0f}\\u{2028}");
    }

    #[test]
    fn words_of_any_language_and_symbols_stay() {
        for text in ["größe 数据 данные עברית عربي", "⚠\u{fe0f} done ✓", "👩\u{200d}💻", "back\\slash \u{fffd}"]
        {
            assert_eq!(printable(text), text);
        }
        assert_eq!(printable(&printable("\u{1b}")), "\\u{1b}", "twice is as good as once");
    }

    #[test]
    fn lines_stay_lines_only_where_that_is_asked_for() {
        assert_eq!(printable_lines("a\n\u{1b}b\r\n"), "a\n\\u{1b}b\\r\n");
    }

    #[test]
    fn json_says_the_same_as_before() {
        let value = serde_json::json!({ "a\u{202e}": ["\u{9b}2J\n\t\u{7f}", "\u{e0041}", "ok ⚠\u{fe0f}"] });
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let safe = printable_json(&text);
            assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
            assert!(
                !safe.chars().any(|character| character != '\n' && is_unsafe(character) && character != '\u{fe0f}')
            );
        }
    }
}
