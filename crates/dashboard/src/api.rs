//! Calls the server's API as the signed-in user. Every call goes through the same router as those of other clients.

use axum::body::Body;
use http::{Extensions, HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use isopod_api::{MaxBody, Peer};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::Front;
use crate::failure::Failure;
use crate::session::Credentials;

/// Answers that pages need are much smaller.
const MAX_ANSWER: usize = 16 << 20;
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The API, for one user.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    front: Front,
    credentials: Credentials,
    host: Option<HeaderValue>,
    peer: Option<Peer>,
    max_body: Option<MaxBody>,
}

/// An answer with its headers.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) headers: HeaderMap,
    pub(crate) value: T,
}

impl Api {
    /// Calls as the sender of a request with these headers and extensions.
    pub(crate) fn new(front: Front, credentials: Credentials, headers: &HeaderMap, extensions: &Extensions) -> Self {
        Self {
            front,
            credentials,
            host: headers.get(header::HOST).cloned(),
            peer: extensions.get().copied(),
            max_body: extensions.get().copied(),
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        Ok(self.get_with_headers(path).await?.value)
    }

    /// For lists, whose headers say how they go on.
    pub(crate) async fn get_with_headers<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, Failure> {
        let (headers, body) = self.read(self.send(Method::GET, path, Body::empty(), None).await?).await?;
        let value = serde_json::from_slice(&body).map_err(|error| {
            tracing::warn!(path, %error, "the dashboard does not understand an answer of the API");
            Failure::unexpected("the API")
        })?;
        Ok(Answer { headers, value })
    }

    /// An answer that isn't JSON.
    pub(crate) async fn get_text(&self, path: &str) -> Result<String, Failure> {
        let (_, body) = self.read(self.send(Method::GET, path, Body::empty(), None).await?).await?;
        String::from_utf8(body).map_err(|_| Failure::unexpected("the API"))
    }

    /// Changes something. Returns null if the answer has no body.
    pub(crate) async fn change(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        let (kind, body) = match body {
            Some(value) => (Some("application/json"), Body::from(value.to_string())),
            None => (None, Body::empty()),
        };
        let (_, body) = self.read(self.send(method, path, body, kind).await?).await?;
        Ok(serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Sends any body. The answer may be a refusal.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Body,
        content_type: Option<&'static str>,
    ) -> Result<Response<Body>, Failure> {
        let mut request = Request::builder().method(method).uri(path).body(body).map_err(|_| not_a_path())?;
        if let Some(kind) = content_type {
            request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        self.credentials.apply(request.headers_mut());
        self.prepare(&mut request);
        Ok(self.front.api.clone().oneshot(request).await.unwrap_or_else(|never| match never {}))
    }

    /// Sends a request into a sandbox, which its headers name. The answer may be a refusal.
    pub(crate) async fn send_inside(&self, mut request: Request<Body>) -> Response<Body> {
        self.prepare(&mut request);
        self.front.sandboxes.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
    }

    fn prepare(&self, request: &mut Request<Body>) {
        if let Some(host) = &self.host {
            request.headers_mut().insert(header::HOST, host.clone());
        }
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        if let Some(limit) = self.max_body {
            request.extensions_mut().insert(limit);
        }
    }

    async fn read(&self, response: Response<Body>) -> Result<(HeaderMap, Vec<u8>), Failure> {
        read(response).await
    }
}

/// Reads a successful answer. A refusal becomes a failure with its message.
pub(crate) async fn read(response: Response<Body>) -> Result<(HeaderMap, Vec<u8>), Failure> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|_| Failure::unexpected("the server"))?;
    let body = body.to_bytes().to_vec();
    if head.status.is_success() {
        return Ok((head.headers, body));
    }
    let message =
        serde_json::from_slice::<Value>(&body).ok().and_then(|body| body["message"].as_str().map(str::to_owned));
    Err(Failure::new(head.status, message.unwrap_or_else(|| default_message(head.status))))
}

fn default_message(status: StatusCode) -> String {
    format!("the server answered {status}")
}

fn not_a_path() -> Failure {
    Failure::bad_request("this can't be part of a path")
}

/// Escapes one component of a path, or a value of a query.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}
