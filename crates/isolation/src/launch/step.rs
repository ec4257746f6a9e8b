//! Named steps: the operation that failed, in a form that can be sent to another process.

use std::io;

use serde::{Deserialize, Serialize};

use super::LaunchError;

/// The step that failed, and the cause.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) step: String,
    pub(super) errno: i32,
}

/// Names an operation.
pub(super) trait Step<T> {
    fn step(self, what: &str) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| {
            let errno = error.into().raw_os_error().unwrap_or(libc::EIO);
            Failure { step: what.to_owned(), errno }
        })
    }
}

impl From<Failure> for LaunchError {
    fn from(failure: Failure) -> Self {
        Self::Step { step: failure.step, source: io::Error::from_raw_os_error(failure.errno) }
    }
}
