//! Stands before every page: checks the origin of a request, its session and its token, and sets the security headers of
//! the answer. No handler does any of this itself, so none can forget it.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Form, FromRequest as _, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use serde::Deserialize;

use crate::Dashboard;
use crate::cookies::{CookieName, append_cookie};
use crate::failure::Failure;
use crate::flash;
use crate::page;
use crate::session::Session;
use crate::sign_in;
use crate::visit::{ByScript, Visit};

/// Forms of our pages are much smaller. Files are sent by scripts, which put the token into a header.
const MAX_FORM: usize = 1 << 20;
const CSRF_HEADER: &str = "x-csrf-token";

#[derive(Deserialize)]
struct CsrfField {
    csrf: Option<String>,
}

/// Guards what needs no session.
pub(crate) async fn without_session(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if let Err(reason) = crate::origin::check(&parts) {
        return secured(refusal(&parts, StatusCode::FORBIDDEN, reason));
    }
    let response = next.run(Request::from_parts(parts, body)).await;
    secured(if let Some(failure) = response.extensions().get::<Failure>() { page::bare(failure) } else { response })
}

/// Guards what needs a session.
pub(crate) async fn with_session(State(dashboard): State<Arc<Dashboard>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let Some(session) = session_of(&dashboard, &parts) else { return secured(sign_in_first(&parts)) };
    if let Err(reason) = crate::origin::check(&parts) {
        return secured(refusal(&parts, StatusCode::FORBIDDEN, reason));
    }
    let body = match check_token(&session, &parts, body).await {
        Ok(body) => body,
        Err(failure) => return secured(refusal(&parts, failure.status, &failure.message)),
    };
    let visit = Visit::new(&dashboard, session, &parts);
    parts.extensions.insert(visit.clone());
    strip_credentials(&mut parts);
    let head = head_of(&parts);
    let mut response = next.run(Request::from_parts(parts, body)).await;
    if let Some(failure) = response.extensions().get::<Failure>().cloned() {
        response = show_failure(&dashboard, &visit, &head, &failure);
    }
    if visit.flash.is_some() && is_page(&response) && response.status().is_success() {
        // It was shown.
        append_cookie(&mut response, flash::name(&head).clear());
    }
    secured(response)
}

fn session_of(dashboard: &Dashboard, parts: &Parts) -> Option<Session> {
    let cookie = CookieName::of("session", parts).read(&parts.headers)?;
    Session::open(&cookie, &dashboard.key, &dashboard.signed_out)
}

/// A change must carry the token of its session, in a header or in a form.
async fn check_token(session: &Session, parts: &Parts, body: Body) -> Result<Body, Failure> {
    if parts.method == Method::GET || parts.method == Method::HEAD {
        return Ok(body);
    }
    let refused = || Failure::new(StatusCode::FORBIDDEN, "the form is from another session; load the page again");
    if let Some(given) = parts.headers.get(CSRF_HEADER) {
        return if same(given.as_bytes(), session.csrf.as_bytes()) { Ok(body) } else { Err(refused()) };
    }
    let is_form = parts
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    if !is_form {
        return Err(refused());
    }
    let bytes = to_bytes(body, MAX_FORM)
        .await
        .map_err(|_| Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "the form could not be read, or is too large"))?;
    let mut copy = Request::new(Body::from(bytes.clone()));
    (*copy.method_mut(), *copy.headers_mut()) = (parts.method.clone(), parts.headers.clone());
    let field = Form::<CsrfField>::from_request(copy, &()).await.ok().and_then(|Form(field)| field.csrf);
    match field {
        Some(given) if same(given.as_bytes(), session.csrf.as_bytes()) => Ok(Body::from(bytes)),
        _ => Err(refused()),
    }
}

/// Compares in a time that doesn't depend on where they differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |found, (one, other)| found | (one ^ other)) == 0
}

/// What follows sees the session only as a [`Visit`]. Requests go on into sandboxes, which must see neither.
fn strip_credentials(parts: &mut Parts) {
    for name in ["cookie", "authorization", "x-api-key", CSRF_HEADER] {
        parts.headers.remove(name);
    }
}

/// The part of a request that names cookies, for after the handler took the rest.
fn head_of(parts: &Parts) -> Parts {
    let mut copy = Request::new(());
    (*copy.method_mut(), *copy.uri_mut()) = (parts.method.clone(), parts.uri.clone());
    *copy.headers_mut() = parts.headers.clone();
    let mut copy = copy.into_parts().0;
    if let Some(peer) = parts.extensions.get::<isopod_api::Peer>() {
        copy.extensions.insert(*peer);
    }
    copy
}

fn sign_in_first(parts: &Parts) -> Response {
    if is_script(parts) {
        return json(&Failure::new(StatusCode::UNAUTHORIZED, "the session is over; sign in again"));
    }
    let next = parts.uri.path_and_query().map_or("/dashboard", |path| path.as_str());
    let next = if parts.method == Method::GET { next } else { "/dashboard" };
    sign_in::form(StatusCode::UNAUTHORIZED, next, None)
}

fn show_failure(dashboard: &Dashboard, visit: &Visit, head: &Parts, failure: &Failure) -> Response {
    let is_over = failure.status == StatusCode::UNAUTHORIZED;
    if is_over {
        // The key was revoked, or the token has expired.
        dashboard.signed_out.add(&visit.session);
        let mut response = sign_in_first(head);
        append_cookie(&mut response, CookieName::of("session", head).clear());
        return response;
    }
    if is_script(head) { json(failure) } else { page::failure(visit, failure) }
}

fn refusal(parts: &Parts, status: StatusCode, reason: &str) -> Response {
    let failure = Failure::new(status, reason);
    if is_script(parts) { json(&failure) } else { page::bare(&failure) }
}

/// Whether something else than the user's browser window asks.
fn is_script(parts: &Parts) -> bool {
    let accepts_pages = parts
        .headers
        .get(header::ACCEPT)
        .and_then(|kinds| kinds.to_str().ok())
        .is_none_or(|kinds| kinds.contains("text/html"));
    ByScript::of(parts).0 || !accepts_pages
}

fn json(failure: &Failure) -> Response {
    let body = serde_json::json!({ "code": failure.status.as_u16(), "message": failure.message });
    (failure.status, axum::Json(body)).into_response()
}

fn is_page(response: &Response) -> bool {
    response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"))
}

/// Sets the headers that every answer has. A page that shows frames has set its own policy.
fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert_with(|| page::policy(None));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert(
        "permissions-policy",
        HeaderValue::from_static("camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_as_a_whole() {
        assert!(same(b"abc", b"abc"));
        for (one, other) in [("abc", "abd"), ("abc", "ab"), ("", "a")] {
            assert!(!same(one.as_bytes(), other.as_bytes()));
        }
    }
}
