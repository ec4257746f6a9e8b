//! CORS headers. Browsers may call from any origin: access depends on tokens, not on origins.

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};

use crate::http::{Reply, status_reply};

const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
const EXPOSED: &str = "Location, Cache-Control, Content-Encoding, Content-Length, Content-Range, Content-Disposition, X-Content-Type-Options";
const MAX_AGE_SECONDS: &str = "7200";

pub(crate) fn is_preflight<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS
}

pub(crate) fn preflight<B>(request: &Request<B>) -> Reply {
    let mut reply = status_reply(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    // `*` does not cover Authorization, so the reply repeats the requested headers.
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(HeaderValue::from_static("*")));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE_SECONDS));
    allow(headers);
    reply
}

pub(crate) fn allow(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
}
