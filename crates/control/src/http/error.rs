//! The one place where refusals and failures become a status and a body. What broke inside goes to the log, not out.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use isopod_store::StoreError;
use isopod_wire::FeatureError;
use isopod_wire::node::{CreateError, NodeError};
use serde_json::{Value, json};

use super::body::body_error;
use crate::files::FileError;
use crate::lifecycle::{ActError, CreateRefusal, NoPlace, Refusal};
use crate::templates::{ContextError, FindError, NameError, PlanError, TooManyBuilds, UploadError};

/// An answer that says no.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
    should_retry: Option<bool>,
    /// The same for readers that look for `error`, as agents do.
    error: Option<String>,
    /// Figures that a program may act on.
    details: Option<Value>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            code: None,
            retry_after: None,
            should_retry: None,
            error: None,
            details: None,
        }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub fn sandbox_not_found(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::not_found(format!("sandbox \"{shown}\" doesn't exist or you don't have access to it"))
    }

    /// Another server on the same database has it: ask there.
    pub fn elsewhere(server: String) -> Self {
        let answer = Self::new(StatusCode::MISDIRECTED_REQUEST, format!("it is on another server: {server}"));
        let answer = Self { should_retry: Some(false), ..answer };
        answer.with_code("on_another_server").with_details(json!({ "server": server }))
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the request body is larger than {limit} bytes"))
    }

    pub fn stalled() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the request body stopped coming")
    }

    pub fn wrong_type() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the request body must be application/json, not compressed")
    }

    /// A part of E2B that is not there yet. Never retried.
    pub fn unsupported(what: &str) -> Self {
        let message = format!("{what} is not supported by this server");
        Self { should_retry: Some(false), ..Self::new(StatusCode::NOT_IMPLEMENTED, message) }
    }

    /// What is told.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    pub fn with_error(self, error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..self }
    }

    pub fn with_details(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }

    /// The service gives every refusal a code.
    pub fn with_default_code(self) -> Self {
        let code = self.code_or_default();
        self.with_code(code)
    }

    pub fn code_or_default(&self) -> &'static str {
        self.code.unwrap_or(match self.status.as_u16() {
            400 => "invalid_request",
            401 => "invalid_key",
            403 => "forbidden",
            404 => "not_found",
            408 => "timeout",
            409 => "conflict",
            413 => "too_large",
            415 => "wrong_type",
            429 => "quota_exceeded",
            503 => "unavailable",
            504 => "timeout",
            _ => "internal_server_error",
        })
    }

    pub fn audit_down(error: &crate::audit::AuditDown) -> Self {
        Self::unavailable(error, "the audit cannot be written at the moment").with_code("audit_unavailable")
    }

    pub fn retry_in(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), should_retry: Some(true), ..self }
    }

    /// Something broke; `error` is logged with the request's id, once, here.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = isopod_wire::error_chain(error), "a request failed");
        let message = "an internal error occurred; the server's log says more under this request's id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message).with_code("internal_server_error")
    }

    /// Trouble that may pass: the store is locked or its disk is full, the node does not answer.
    pub fn unavailable(error: &(dyn std::error::Error + 'static), message: &str) -> Self {
        tracing::error!(error = isopod_wire::error_chain(error), "a request failed for now");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_in(Duration::from_secs(1))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = json!({ "code": self.status.as_u16(), "message": self.message });
        if let Some(code) = self.code {
            body["error_code"] = json!(code);
        }
        if let Some(error) = &self.error {
            body["success"] = json!(false);
            body["error"] = json!(error);
        }
        if let Some(details) = &self.details {
            body["details"] = details.clone();
        }
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if let Some(should) = self.should_retry {
            headers.insert("should-retry", HeaderValue::from_static(if should { "true" } else { "false" }));
        }
        // For the service's audit, which wants to know the code.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Corrupt { .. } => Self::internal(&error),
            StoreError::Elsewhere { server } => Self::elsewhere(server),
            _ => Self::unavailable(&error, "the server cannot record anything at the moment"),
        }
    }
}

impl From<NoPlace> for ApiError {
    fn from(refusal: NoPlace) -> Self {
        let wait = match refusal {
            NoPlace::Concurrent(_) => Duration::from_secs(1),
            NoPlace::Rate { wait, .. } => wait,
        };
        Self::new(StatusCode::TOO_MANY_REQUESTS, refusal.to_string()).retry_in(wait)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::NotFound => Self::not_found(message),
            Refusal::AlreadyPaused | Refusal::Paused | Refusal::NeedsConnect => Self::conflict(message),
            Refusal::Busy => Self::conflict(message).retry_in(Duration::from_secs(1)),
        }
    }
}

impl From<ActError> for ApiError {
    fn from(error: ActError) -> Self {
        match error {
            ActError::Refused(refusal) => refusal.into(),
            ActError::NoPlace(refusal) => refusal.into(),
            ActError::Store(error) => error.into(),
            ActError::GuestUnresponsive => {
                Self { should_retry: Some(false), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()) }
            }
            ActError::Node(NodeError::NotFound(_)) => Refusal::NotFound.into(),
            ActError::Node(NodeError::WrongState { .. }) => Refusal::Busy.into(),
            ActError::Node(NodeError::NotStopped(_)) => {
                let message = "the sandbox runs on: something in it waits for an answer, such as of the workspace";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_in(Duration::from_secs(5))
            }
            ActError::Node(NodeError::Workspace { reason, .. }) => CreateError::Workspace(reason).into(),
            ActError::Node(_) | ActError::NodePanicked => Self::internal(&error),
            ActError::NodeTimeout(_) => Self::new(StatusCode::GATEWAY_TIMEOUT, error.to_string()),
        }
    }
}

impl From<CreateRefusal> for ApiError {
    fn from(refusal: CreateRefusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            CreateRefusal::NoPlace(refusal) => refusal.into(),
            CreateRefusal::Network(_) | CreateRefusal::Features(FeatureError::Unknown(_)) => Self::bad_request(message),
            CreateRefusal::Features(FeatureError::NotGranted(_)) => Self::forbidden(message),
            CreateRefusal::SessionDiffers(_) => {
                Self::conflict(format!("{message} or other limits; end it first or use another session key"))
            }
            CreateRefusal::SessionTaken => Self::conflict(message).retry_in(Duration::from_secs(1)),
            CreateRefusal::Session(error) => error.into(),
            CreateRefusal::Store(error) => error.into(),
            CreateRefusal::Node(error) => error.into(),
            CreateRefusal::NodeTimeout(_) => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, message).with_code("sandbox_placement_timeout")
            }
            CreateRefusal::Aborted => Self::internal(&refusal).with_code("sandbox_create_failed"),
        }
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<FindError> for ApiError {
    fn from(error: FindError) -> Self {
        let message = error.to_string();
        match error {
            FindError::Name(error) => error.into(),
            FindError::NotFound(_) | FindError::NoTag { .. } => Self::not_found(message),
            FindError::Forbidden(_) => Self::forbidden(message),
            FindError::Store(error) => error.into(),
        }
    }
}

impl From<PlanError> for ApiError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Store(error) => error.into(),
            PlanError::Template(FindError::Store(error)) => error.into(),
            PlanError::Template(error @ FindError::Forbidden(_)) => error.into(),
            other => Self::bad_request(other.to_string()),
        }
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::TooLarge(_) | UploadError::TeamFull(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
            }
            UploadError::BrokeOff(ref cause) => body_error(cause, Self::bad_request(error.to_string())),
            UploadError::Disk { .. } => Self::unavailable(&error, "the upload cannot be kept at the moment"),
            UploadError::Store(error) => error.into(),
        }
    }
}

impl From<TooManyBuilds> for ApiError {
    fn from(error: TooManyBuilds) -> Self {
        let refused = Self::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).with_code("too_many_builds");
        refused.retry_in(Duration::from_secs(10))
    }
}

impl From<ContextError> for ApiError {
    fn from(error: ContextError) -> Self {
        match error {
            ContextError::Disk { .. } => Self::unavailable(&error, "the context cannot be kept at the moment"),
            ContextError::TooLarge(_) | ContextError::TeamFull(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
            }
            other => Self::bad_request(other.to_string()),
        }
    }
}

impl From<FileError> for ApiError {
    fn from(error: FileError) -> Self {
        let message = error.to_string();
        match error {
            FileError::Path(_) | FileError::EmptyKey | FileError::MetadataKey | FileError::NotRegular(_) => {
                Self::bad_request(message)
            }
            FileError::IsDirectory(_) | FileError::Cut => Self::bad_request(message),
            FileError::NotFound(_) => Self::not_found(message),
            FileError::NotDirectory(_) | FileError::Exists(_) => Self::conflict(message),
            FileError::TooLarge(_) => Self::new(StatusCode::PAYLOAD_TOO_LARGE, message),
            FileError::Quota(_) | FileError::Full | FileError::TooMany(_) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, message)
            }
            FileError::Workspace(_) => Self::unavailable(&error, "the workspace cannot be used at the moment"),
            FileError::Away { .. } => Self::unavailable(&error, "the store of the workspace does not answer"),
            FileError::Aborted | FileError::Io { .. } => Self::internal(&error),
        }
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::UnknownTemplate(name) => Self::not_found(format!("template '{name}' not found")),
            CreateError::TemplateNotReady { .. } => {
                let building = Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
                building.with_code("template_not_ready").retry_in(Duration::from_secs(10))
            }
            CreateError::Mounts(why) => Self::bad_request(format!("the workspace cannot be mounted so: {why}")),
            CreateError::Limits(why) => Self::bad_request(format!("the limits cannot be had here: {why}")),
            CreateError::Full(why) => {
                let full = Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("the host is full: {why}"));
                full.with_code("sandbox_capacity_unavailable").retry_in(Duration::from_secs(2))
            }
            CreateError::Workspace(_) => {
                let away = Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
                away.with_code("workspace_unavailable").retry_in(Duration::from_secs(5))
            }
            CreateError::Exists(_) | CreateError::Failed(_) => {
                Self::internal(&error).with_code("sandbox_create_failed")
            }
        }
    }
}

/// A directory where a file should be, or something else where a directory should.
pub fn is_in_the_way(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    let is_a_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    is_a_link || matches!(error.kind(), ErrorKind::IsADirectory | ErrorKind::NotADirectory)
}

pub(super) async fn no_such_route() -> ApiError {
    ApiError::not_found("no such route")
}

pub(super) async fn no_such_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this route does not have that method")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_answer_is_told_as_such_and_may_be_asked_again() {
        let errno = |errno: rustix::io::Errno| FileError::doing("read", "a")(errno.into());
        for away in [rustix::io::Errno::IO, rustix::io::Errno::NOTCONN] {
            assert_eq!(ApiError::from(errno(away)).status, StatusCode::SERVICE_UNAVAILABLE);
        }
        assert_eq!(ApiError::from(errno(rustix::io::Errno::ACCESS)).status, StatusCode::INTERNAL_SERVER_ERROR);
        let refused = ApiError::from(CreateError::Workspace("its store cannot be reached".to_owned()));
        assert_eq!((refused.status, refused.code), (StatusCode::SERVICE_UNAVAILABLE, Some("workspace_unavailable")));
        assert_eq!(refused.message, "the workspace is not available: its store cannot be reached");
        assert!(refused.retry_after.is_some());
    }
}
