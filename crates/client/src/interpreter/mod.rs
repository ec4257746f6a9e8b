//! The code interpreter of one sandbox: contexts that keep their state, and code that runs in them.

mod contexts;
mod event;
mod lines;
mod run;

use std::time::Duration;

use http::header::InvalidHeaderValue;
use http::{HeaderMap, Method, Response};
use hyper::body::Incoming;

pub use contexts::CodeContext;
pub use event::{CodeError, CodeEvent, CodeResult};
pub use run::{Executed, Execution, RunCode};

use crate::guest::GuestError;
use crate::transport::{Body, Connector, Http, read_limited};

const MAX_REFUSAL: usize = 64 << 10;
/// A first context of a language may have to be started from nothing.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Speaks with the code interpreter of one sandbox. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Interpreter {
    http: Http,
}

impl Interpreter {
    /// The interpreter at the other end of a connector, without a server in between.
    pub fn over(connector: Connector) -> Self {
        let base = "http://localhost".parse().expect("it is a URL");
        Self::over_http(Http::new(connector, base, HeaderMap::new(), REQUEST_TIMEOUT))
    }

    pub(crate) fn over_http(http: Http) -> Self {
        Self { http }
    }

    /// Shows this token with every request.
    ///
    /// # Errors
    /// When it has characters that cannot stand in a header.
    pub fn with_access_token(mut self, token: &str) -> Result<Self, InvalidHeaderValue> {
        self.http.show_tokens(Some(token), None)?;
        Ok(self)
    }

    fn request(&self, method: Method, path: &str, body: Body) -> Result<http::Request<Body>, GuestError> {
        let json = http::HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, json)]);
        Ok(self.http.request(method, path, headers, body)?)
    }

    /// Turns a reply that is not a success into an error.
    async fn accept(&self, reply: Response<Incoming>) -> Result<Response<Incoming>, GuestError> {
        if reply.status().is_success() {
            return Ok(reply);
        }
        let status = reply.status();
        let body = read_limited(reply.into_body(), MAX_REFUSAL).await.map_err(|error| self.http.broken(error))?;
        Err(GuestError::from_reply(status, &body))
    }
}
