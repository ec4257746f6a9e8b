//! Standard error, for the programs' own messages.

use std::io::Write;

/// Prints a line. There is no other place to report a failure to.
pub(crate) fn print_line(message: &str) {
    let _ = writeln!(std::io::stderr(), "{message}");
}
