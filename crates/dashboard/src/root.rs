//! `/`: leads browsers to the dashboard. For everybody else there is nothing, as without a dashboard.

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, Method, StatusCode, header};
use isopod_api::ApiError;

pub(crate) async fn root(request: Request) -> Response {
    let wants_page = request
        .headers()
        .get(header::ACCEPT)
        .and_then(|kinds| kinds.to_str().ok())
        .is_some_and(|kinds| kinds.contains("text/html"));
    if *request.method() != Method::GET || !wants_page {
        return ApiError::not_found("no such route").into_response();
    }
    let mut response = StatusCode::SEE_OTHER.into_response();
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/dashboard"));
    response
}
