//! Maps errors of runs and sessions to API errors.

use std::time::Duration;

use http::StatusCode;
use isopod_api::ApiError;
use isopod_control::http::is_in_the_way;

use crate::runs::{CommandError, Refusal as RunRefusal, StartError, WorkflowError};
use crate::sessions::{FileError as RunFileError, NO_SANDBOX, SessionError, WorkspaceError};

impl From<WorkflowError> for ApiError {
    fn from(error: WorkflowError) -> ApiError {
        ApiError::bad_request(error.to_string())
    }
}

impl From<StartError> for ApiError {
    fn from(error: StartError) -> ApiError {
        match error {
            StartError::Graph(_) | StartError::NoAgent(_) => ApiError::bad_request(error.to_string()),
            StartError::Store(error) => error.into(),
        }
    }
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> ApiError {
        let refusal = match error {
            CommandError::Store(error) => return error.into(),
            CommandError::Refused(refusal) => refusal,
        };
        let message = refusal.to_string();
        match refusal {
            RunRefusal::NotFound => ApiError::not_found(message),
            RunRefusal::NotPaused | RunRefusal::NotWaiting(_) => ApiError::bad_request(message),
            RunRefusal::Ended => ApiError::conflict(message),
            RunRefusal::Stopping => ApiError::unavailable(&refusal, &message),
        }
    }
}

impl From<RunFileError> for ApiError {
    fn from(error: RunFileError) -> ApiError {
        match error {
            RunFileError::NotFound(_) => ApiError::not_found(error.to_string()),
            RunFileError::InTheWay(_) => ApiError::conflict(error.to_string()),
            RunFileError::Session(error) => error.into(),
        }
    }
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> ApiError {
        let message = error.to_string();
        match error {
            SessionError::Template(error) => error.into(),
            SessionError::Create { source, .. } => ApiError::from(source).with_error(NO_SANDBOX),
            SessionError::Use { source, .. } => ApiError::from(source).with_error(NO_SANDBOX),
            SessionError::Checkpoint { source, .. } => {
                let error = ApiError::from(source);
                // Nobody knows whether it was done.
                if error.status() == StatusCode::GATEWAY_TIMEOUT { error.without_retry() } else { error }
            }
            SessionError::Kill { .. } => ApiError::internal(&error).with_error(message),
            SessionError::Unfinished { source, .. } => {
                let message = format!("{source}; the cleanup will be tried again");
                ApiError::unavailable(&error, &message).with_error(message)
            }
            SessionError::Disposed(_) | SessionError::Elsewhere(_) => {
                ApiError::conflict(message.clone()).with_error(message)
            }
            SessionError::Busy { .. } => {
                ApiError::conflict(message.clone()).with_error(message).retry_in(Duration::from_secs(1))
            }
            SessionError::NotYours(_) => ApiError::not_found(message),
            SessionError::Store(error) => error.into(),
            SessionError::Workspace(error) => error.into(),
            SessionError::Aborted => ApiError::internal(&error),
        }
    }
}

impl From<WorkspaceError> for ApiError {
    fn from(error: WorkspaceError) -> ApiError {
        match error {
            WorkspaceError::Host { ref source, ref path, .. } if is_in_the_way(source) => {
                // An absolute path would reveal the host's directories.
                let shown = if path.is_absolute() { "the files of the run".into() } else { path.to_string_lossy() };
                ApiError::conflict(format!("{shown}: something else is in the way"))
            }
            WorkspaceError::Host { .. } => ApiError::unavailable(&error, "the files of the run cannot be used now"),
            WorkspaceError::Guest { .. } | WorkspaceError::Late { .. } => ApiError::internal(&error),
            WorkspaceError::Store(error) => error.into(),
        }
    }
}
