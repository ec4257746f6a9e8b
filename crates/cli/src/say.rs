//! Words on standard output. A reader that went away (`isopod ls | head`) wants no more of them, and is no reason to stop
//! what is being done.

use std::fmt::Arguments;
use std::io::Write as _;

pub(crate) fn print(words: Arguments<'_>) {
    let _ = std::io::stdout().write_fmt(words);
    let _ = std::io::stdout().flush();
}

/// Like `println!`, for a reader that may have left.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::say::print(format_args!("{}\n", format_args!($($words)*)))
    };
}
