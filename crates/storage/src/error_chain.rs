//! Formats errors in one line, like `isopod_wire::error_chain`. This crate does not depend on `wire`.

use std::error::Error;

/// An error and all its causes. The outermost error often only says that sending failed.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
