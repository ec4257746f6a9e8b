//! Converts refusals and failures into a status and a body. Internal details go to the log, not to the client.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::{HeaderValue, StatusCode, header};
use isopod_store::StoreError;
use isopod_store::template_name::NameError;
use isopod_wire::node::CreateError;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::audit::AuditDown;
use crate::describe::{DescribeAnswer, Description};
use crate::hop::Elsewhere;

/// The body of an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody<'a> {
    /// The HTTP status.
    code: u16,
    message: &'a str,
    /// A stable identifier for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error_code: Option<&'static str>,
    /// False if `error` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    success: Option<bool>,
    /// The same as the message, for clients that expect `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<&'a str>,
    /// Values that a program can act on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    details: Option<&'a Value>,
}

/// An error response.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
    should_retry: Option<bool>,
    /// A message for clients that expect `error`, such as agents.
    error: Option<String>,
    /// Values that a program can act on. In a box, as the next one, so that results stay small.
    details: Option<Box<Value>>,
    /// Who may answer instead, for a cluster.
    elsewhere: Option<Box<Elsewhere>>,
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
            elsewhere: None,
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

    /// The resource is on another server that shares the database. `id` is the server's id, `server` its name.
    pub fn elsewhere(id: String, server: String) -> Self {
        let answer = Self::new(StatusCode::MISDIRECTED_REQUEST, format!("it is on another server: {server}"));
        let answer = answer.without_retry().with_code("on_another_server").with_details(json!({ "server": server }));
        Self { elsewhere: Some(Box::new(Elsewhere::On { server: id })), ..answer }
    }

    /// Lets another server of a cluster do it, because this one has no room at the moment.
    #[must_use]
    pub fn for_any_other(self) -> Self {
        Self { elsewhere: Some(Box::new(Elsewhere::AnyOther)), ..self }
    }

    /// The server that has it broke off, and nobody knows whether it has done what was asked.
    pub fn server_lost(server: &str) -> Self {
        let message = format!("the connection to the server {server} broke; the request may have been carried out");
        let lost = Self::new(StatusCode::BAD_GATEWAY, message).with_code("server_lost");
        lost.without_retry().with_details(json!({ "server": server }))
    }

    /// The resource is on another server, which may be back soon: it restarts, or its machine is gone.
    pub fn server_unreachable(server: String) -> Self {
        let message = format!("it is on the server {server}, which can't be reached at the moment; try again");
        let answer = Self::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("server_unreachable");
        answer.with_details(json!({ "server": server })).retry_in(Duration::from_secs(5))
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the request body is larger than {limit} bytes"))
    }

    pub fn stalled() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timed out waiting for the request body")
    }

    pub fn wrong_type() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the request body must be application/json and not compressed")
    }

    /// A part of E2B's API that is not supported. Clients do not retry it.
    pub fn unsupported(what: &str) -> Self {
        let message = format!("{what} is not supported by this server");
        Self::new(StatusCode::NOT_IMPLEMENTED, message).without_retry()
    }

    /// Tells clients not to send the request again.
    pub fn without_retry(self) -> Self {
        Self { should_retry: Some(false), ..self }
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The message of the error.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Adds what the client can do about it.
    pub fn with_advice(mut self, advice: &str) -> Self {
        self.message = format!("{}; {advice}", self.message);
        self
    }

    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    pub fn with_error(self, error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..self }
    }

    pub fn with_details(self, details: Value) -> Self {
        Self { details: Some(Box::new(details)), ..self }
    }

    /// Adds one value to the details.
    pub fn with_detail(mut self, name: &str, value: Value) -> Self {
        let details = self.details.get_or_insert_with(|| Box::new(json!({})));
        if let Some(fields) = details.as_object_mut() {
            fields.insert(name.to_owned(), value);
        }
        self
    }

    /// Sets a code if there is none, because the service returns one with every error.
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
            410 => "gone",
            413 => "too_large",
            415 => "wrong_type",
            429 => "quota_exceeded",
            503 => "unavailable",
            504 => "timeout",
            _ => "internal_server_error",
        })
    }

    pub fn audit_down(error: &AuditDown) -> Self {
        Self::unavailable(error, "the audit log cannot be written at the moment").with_code("audit_unavailable")
    }

    pub fn retry_in(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), should_retry: Some(true), ..self }
    }

    /// An internal error. Logs `error` once, with the request's id.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = isopod_wire::error_chain(error), "a request failed");
        let message = "an internal error occurred; see the server's log for this request's id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message).with_code("internal_server_error")
    }

    /// A temporary failure: the store is locked or its disk is full, or the node does not answer.
    pub fn unavailable(error: &(dyn std::error::Error + 'static), message: &str) -> Self {
        tracing::error!(error = isopod_wire::error_chain(error), "a request failed temporarily");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_in(Duration::from_secs(1))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            code: self.status.as_u16(),
            message: &self.message,
            error_code: self.code,
            success: self.error.is_some().then_some(false),
            error: self.error.as_deref(),
            details: self.details.as_deref(),
        };
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if let Some(should) = self.should_retry {
            headers.insert("should-retry", HeaderValue::from_static(if should { "true" } else { "false" }));
        }
        if let Some(elsewhere) = self.elsewhere.as_deref() {
            response.extensions_mut().insert(elsewhere.clone());
        }
        // The service's audit reads the code from here.
        response.extensions_mut().insert(self);
        response
    }
}

/// For handlers that only refuse.
impl DescribeAnswer for ApiError {
    fn describe(_: &mut Description) {}
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Corrupt { .. } => Self::internal(&error),
            StoreError::Elsewhere { id, server } => Self::elsewhere(id, server),
            StoreError::Unreachable { server } => Self::server_unreachable(server),
            _ => Self::unavailable(&error, "the database cannot be used at the moment"),
        }
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::UnknownTemplate(name) => Self::not_found(format!("template '{name}' not found")),
            CreateError::UnknownSnapshot(_) => Self::not_found(error.to_string()),
            CreateError::Memory(_) => Self::conflict(error.to_string()).with_code("snapshot_memory_not_restorable"),
            CreateError::NoMemory(_) => {
                let refused = Self::new(StatusCode::NOT_IMPLEMENTED, error.to_string());
                refused.with_code("memory_snapshots_unavailable").without_retry()
            }
            CreateError::TemplateNotReady { .. } => {
                let building = Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
                building.with_code("template_not_ready").retry_in(Duration::from_secs(10))
            }
            CreateError::Mounts(why) => Self::bad_request(format!("the workspace cannot be mounted this way: {why}")),
            CreateError::Limits(why) => Self::bad_request(format!("this host cannot provide the limits: {why}")),
            CreateError::Full(why) => {
                let full = Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("the host is full: {why}"));
                full.with_code("sandbox_capacity_unavailable").retry_in(Duration::from_secs(2)).for_any_other()
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

/// Adds responses for unknown routes and methods.
pub fn with_fallbacks(router: Router) -> Router {
    router.fallback(no_such_route).method_not_allowed_fallback(no_such_method)
}

async fn no_such_route() -> ApiError {
    ApiError::not_found("no such route")
}

async fn no_such_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this route does not support that method")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_that_is_away_may_be_asked_for_again() {
        let refused = ApiError::from(CreateError::Workspace("its store cannot be reached".to_owned()));
        assert_eq!((refused.status, refused.code), (StatusCode::SERVICE_UNAVAILABLE, Some("workspace_unavailable")));
        assert_eq!(refused.message, "the workspace is not available: its store cannot be reached");
        assert!(refused.retry_after.is_some());
    }
}
