//! Maps errors of the service to API errors: a status, a stable code, a message, and details if there are any.

use http::StatusCode;
use isopod_api::ApiError;
use serde_json::json;

use crate::ServiceError;
use crate::backend::{BackendError, ErrorKind};

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        let (code, message) = (error.code(), error.to_string());
        let status = match &error {
            ServiceError::InStep { .. } => return step_error(error),
            ServiceError::StepFailed(_) => StatusCode::UNPROCESSABLE_ENTITY,
            ServiceError::TooManyGuesses(wait) => {
                return Self::new(StatusCode::TOO_MANY_REQUESTS, message).with_code(code).retry_in(*wait);
            }
            ServiceError::TooManyShortUrls { limit, wait } => {
                let details = json!({ "owner": "address", "what": "short_urls_per_day", "limit": limit });
                let refused = Self::new(StatusCode::TOO_MANY_REQUESTS, message).with_code(code);
                return refused.with_details(details).retry_in(*wait);
            }
            ServiceError::Gone(_) => StatusCode::GONE,
            ServiceError::NotFound { .. } => StatusCode::NOT_FOUND,
            ServiceError::NotOwner | ServiceError::ScopeForbids | ServiceError::Policy(_) => StatusCode::FORBIDDEN,
            ServiceError::Invalid(_) => StatusCode::BAD_REQUEST,
            ServiceError::Quota(_) => StatusCode::TOO_MANY_REQUESTS,
            ServiceError::NotRunning(_) | ServiceError::Conflict { .. } => StatusCode::CONFLICT,
            ServiceError::Git(_) => StatusCode::UNPROCESSABLE_ENTITY,
            ServiceError::Backend(_) => return backend_error(error),
            ServiceError::Store(_) => return store_error(error),
            ServiceError::Aborted => return Self::internal(&error),
        };
        let answer = Self::new(status, message).with_code(code);
        match error {
            ServiceError::Quota(quota) => answer.with_details(json!(quota)),
            ServiceError::NotRunning(status) => answer.with_details(json!({ "status": status.text() })),
            ServiceError::StepFailed(failed) => answer.with_details(json!(failed)),
            _ => answer,
        }
    }
}

/// The error of the step, with its name among the details.
fn step_error(error: ServiceError) -> ApiError {
    match error {
        ServiceError::InStep { step, error } => ApiError::from(*error).with_detail("step", json!(step)),
        other => ApiError::internal(&other),
    }
}

fn store_error(error: ServiceError) -> ApiError {
    match error {
        ServiceError::Store(error) => ApiError::from(error),
        other => ApiError::internal(&other),
    }
}

/// Passes on what concerns the caller. Internal errors go to the log.
fn backend_error(error: ServiceError) -> ApiError {
    let (code, message) = (error.code(), error.to_string());
    let ServiceError::Backend(inner) = &error else { return ApiError::internal(&error) };
    let status = match inner.kind() {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Quota => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::InvalidKey => StatusCode::BAD_GATEWAY,
        ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Unavailable | ErrorKind::BreakerOpen => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal => return ApiError::internal(inner).with_code(code),
    };
    let answer = ApiError::new(status, message).with_code(code);
    match BackendError::retry_after(inner) {
        Some(wait) => answer.retry_in(wait),
        None => answer,
    }
}
