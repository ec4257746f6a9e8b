//! Errors as one line of a log.

use std::error::Error;

/// An error and everything that caused it, in one line.
pub fn error_chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
