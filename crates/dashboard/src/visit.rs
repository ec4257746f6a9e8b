//! A request of a signed-in browser. Handlers take it as an argument; the guard has checked it before.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use isopod_api::scheme_of;

use crate::Dashboard;
use crate::api::Api;
use crate::cookies::CookieName;
use crate::failure::Failure;
use crate::flash;
use crate::session::Session;

/// The user, what they see, and the API to call for them.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) api: Api,
    pub(crate) session: Arc<Session>,
    pub(crate) dashboard: Arc<Dashboard>,
    /// The sentence to show after a change.
    pub(crate) flash: Option<String>,
    scheme: &'static str,
    flash_cookie: CookieName,
}

impl Visit {
    pub(crate) fn new(dashboard: &Arc<Dashboard>, session: Session, parts: &Parts) -> Self {
        let api = Api::new(dashboard.front.clone(), session.credentials.clone(), &parts.headers, &parts.extensions);
        Self {
            api,
            session: Arc::new(session),
            dashboard: Arc::clone(dashboard),
            flash: flash::read(parts, &dashboard.key),
            scheme: scheme_of(parts),
            flash_cookie: flash::name(parts),
        }
    }

    /// Goes on to a page, which shows this sentence.
    pub(crate) fn done(&self, next: &str, sentence: &str) -> Response {
        let mut response = StatusCode::SEE_OTHER.into_response();
        let headers = response.headers_mut();
        headers.insert(header::LOCATION, HeaderValue::try_from(next).unwrap_or(HeaderValue::from_static("/dashboard")));
        if let Some(cookie) = flash::set(&self.flash_cookie, &self.dashboard.key, sentence) {
            headers.append(header::SET_COOKIE, cookie);
        }
        response
    }

    /// The URL of a port of a sandbox, on an origin of its own.
    pub(crate) fn preview_url(&self, sandbox: &str, port: u16) -> String {
        format!("{}://{port}-{sandbox}.{}", self.scheme, self.dashboard.domain)
    }

    /// The source of frames that show sandboxes, for the policy of a page.
    pub(crate) fn preview_source(&self) -> String {
        format!("{}://*.{}", self.scheme, self.dashboard.domain)
    }
}

impl<S: Sync> FromRequestParts<S> for Visit {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        // The guard of routes with a session adds it.
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Failure::new(StatusCode::UNAUTHORIZED, "sign in first"))
    }
}

/// Whether a script of ours asks, which wants no whole page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByScript(pub(crate) bool);

impl ByScript {
    pub(crate) fn of(parts: &Parts) -> Self {
        Self(parts.headers.contains_key("x-csrf-token"))
    }
}

impl<S: Sync> FromRequestParts<S> for ByScript {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts))
    }
}
