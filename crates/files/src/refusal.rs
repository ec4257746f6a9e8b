//! Maps errors of the workspace to responses.

use http::StatusCode;
use isopod_api::ApiError;

use crate::FileError;

impl From<FileError> for ApiError {
    fn from(error: FileError) -> Self {
        let message = error.to_string();
        match error {
            FileError::Path(_) | FileError::EmptyKey | FileError::MetadataKey | FileError::NotRegular(_) => {
                Self::bad_request(message)
            }
            FileError::IsDirectory(_) | FileError::Incomplete => Self::bad_request(message),
            FileError::NotFound(_) => Self::not_found(message),
            FileError::NotDirectory(_) | FileError::Exists(_) => Self::conflict(message),
            FileError::TooLarge(_) => Self::new(StatusCode::PAYLOAD_TOO_LARGE, message),
            FileError::Quota(_) | FileError::Full | FileError::TooMany(_) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, message)
            }
            FileError::Workspace(_) => Self::unavailable(&error, "the workspace cannot be used at the moment"),
            FileError::Unavailable { .. } => Self::unavailable(&error, "the workspace's object store does not respond"),
            FileError::Aborted | FileError::Io { .. } => Self::internal(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_answer_is_told_as_such_and_may_be_asked_again() {
        let errno = |errno: rustix::io::Errno| FileError::doing("read", "a")(errno.into());
        for away in [rustix::io::Errno::IO, rustix::io::Errno::NOTCONN] {
            assert_eq!(ApiError::from(errno(away)).status(), StatusCode::SERVICE_UNAVAILABLE);
        }
        assert_eq!(ApiError::from(errno(rustix::io::Errno::ACCESS)).status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
