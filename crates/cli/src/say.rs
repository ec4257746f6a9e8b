//! Prints to stdout and stderr. A closed pipe (`isopod ls | head`) isn't an error.
//!
//! Nothing that is printed here can steer a terminal, whoever chose it ([`printable`]). A line break can still begin a new
//! line: text of one line that others chose goes through [`printable`] by itself.
//!
//! [`printable`]: crate::printable::printable

use std::fmt::Arguments;

use serde::Serialize;

use crate::printable::{printable_json, printable_lines};

pub(crate) fn print(words: Arguments<'_>) {
    put(std::io::stdout(), &printable_lines(&words.to_string()));
}

pub(crate) fn print_error(words: Arguments<'_>) {
    put(std::io::stderr(), &printable_lines(&words.to_string()));
}

/// JSON on one line.
pub(crate) fn print_json(value: &(impl Serialize + ?Sized)) {
    put_json(serde_json::to_string(value));
}

/// JSON for people too.
pub(crate) fn print_json_pretty(value: &(impl Serialize + ?Sized)) {
    put_json(serde_json::to_string_pretty(value));
}

fn put_json(text: serde_json::Result<String>) {
    let text = text.expect("what we print has no keys but text");
    put(std::io::stdout(), &(printable_json(&text) + "\n"));
}

fn put(mut to: impl std::io::Write, text: &str) {
    let _ = to.write_all(text.as_bytes());
    let _ = to.flush();
}

/// Like `println!`, for a reader that may have left.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::say::print(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// Like [`say!`], on standard error.
macro_rules! say_error {
    ($($words:tt)*) => {
        $crate::say::print_error(format_args!("{}\n", format_args!($($words)*)))
    };
}
