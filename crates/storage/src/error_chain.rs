//! Errors as one line, as `isopod_wire::error_chain` writes them: this crate does without `wire`.

use std::error::Error;

/// An error and everything that caused it. The outermost one often only says that sending failed.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
