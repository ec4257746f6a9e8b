//! The code interpreter of one sandbox: contexts that keep their state, and code that runs in them.

mod contexts;
mod event;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod lines;
mod run;
mod weight;

use std::time::Duration;

use http::header::InvalidHeaderValue;
use http::{HeaderMap, Method, Response};
use hyper::body::Incoming;

pub use contexts::{CodeContext, ForkedContexts};
pub use event::{CodeError, CodeEvent, CodeResult};
pub use run::{Executed, Execution, RunCode};

use crate::guest::GuestError;
use crate::memory::MemoryBudget;
use crate::transport::{Body, Connector, Http, read_limited};

const MAX_REFUSAL: usize = 64 << 10;
/// The default limit of an event. A result may contain a large picture.
const MAX_EVENT: usize = 256 << 20;
/// The first context of a language may take a while to start.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A client of the code interpreter in one sandbox. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Interpreter {
    http: Http,
    max_event: usize,
    memory: MemoryBudget,
}

impl Interpreter {
    /// Connects to an interpreter with this connector, without a server in between.
    pub fn over(connector: Connector) -> Self {
        let base = "http://localhost".parse().expect("a constant URL is valid");
        Self::over_http(Http::new(connector, base, HeaderMap::new(), REQUEST_TIMEOUT))
    }

    /// Connects to an interpreter with this HTTP client.
    pub fn over_http(http: Http) -> Self {
        Self { http, max_event: MAX_EVENT, memory: MemoryBudget::unlimited() }
    }

    /// Sends this token with every request.
    ///
    /// # Errors
    /// If it has characters that a header cannot contain.
    pub fn with_access_token(mut self, token: &str) -> Result<Self, InvalidHeaderValue> {
        self.http.show_tokens(Some(token), None)?;
        Ok(self)
    }

    /// Sets the maximum size of one event: its length as a line, and its size in memory, which is estimated before it
    /// is parsed. A larger event is an error. The default is 256 MiB.
    pub fn with_event_limit(mut self, limit: usize) -> Self {
        self.max_event = limit;
        self
    }

    /// Counts events against this budget while they are received. An event that doesn't fit is dropped.
    pub fn with_memory(mut self, memory: MemoryBudget) -> Self {
        self.memory = memory;
        self
    }

    fn request(&self, method: Method, path: &str, body: Body) -> Result<http::Request<Body>, GuestError> {
        let json = http::HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, json)]);
        Ok(self.http.request(method, path, headers, body)?)
    }

    /// Converts an unsuccessful reply into an error.
    async fn accept(&self, reply: Response<Incoming>) -> Result<Response<Incoming>, GuestError> {
        if reply.status().is_success() {
            return Ok(reply);
        }
        let status = reply.status();
        let body = read_limited(reply.into_body(), MAX_REFUSAL).await.map_err(|error| self.http.broken(error))?;
        Err(GuestError::from_reply(status, &body))
    }
}
