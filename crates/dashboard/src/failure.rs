//! What went wrong for a page. The guard shows it in the frame of all pages, or as JSON to scripts.

use axum::response::{IntoResponse, Response};
use http::StatusCode;

/// A page that can't be shown, or a change that was not made.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Something answered in a way that we don't understand.
    pub(crate) fn unexpected(what: &str) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, format!("{what} sent an answer that the dashboard doesn't understand"))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
