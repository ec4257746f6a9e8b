//! One call to the API: sends it, and retries it if that is safe.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use isopod_guest_client::transport::{Body, Http, empty_body, full_body, read_limited};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use super::retry::{roll, wait_before_retry};

const MAX_REPLY: usize = 64 << 20;
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A call to the API.
#[derive(Debug)]
pub(crate) struct Call {
    method: Method,
    path: String,
    body: Option<Bytes>,
    headers: HeaderMap,
    /// Whether it is idempotent.
    repeatable: bool,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) headers: HeaderMap,
    body: Bytes,
}

impl Call {
    /// Creates an idempotent call.
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: None, headers: HeaderMap::new(), repeatable: true }
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Self {
        let bytes = serde_json::to_vec(body).expect("bodies of requests have only string keys");
        self.body = Some(bytes.into());
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self
    }

    pub(super) fn text(mut self, body: String, kind: &'static str) -> Self {
        self.body = Some(body.into());
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        self
    }

    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Marks a call that creates something new each time, unless a key identifies it as the same one.
    pub(crate) fn once(mut self, key: Option<&HeaderValue>) -> Self {
        self.repeatable = key.is_some();
        if let Some(key) = key {
            self.headers.insert(IDEMPOTENCY_KEY, key.clone());
        }
        self
    }

    /// Marks a call that is sent only once, whatever the reply.
    pub(super) fn never_repeated(mut self) -> Self {
        self.repeatable = false;
        self
    }

    pub(crate) async fn send(self, http: &Http) -> Result<Reply, ApiError> {
        let mut retries = 0;
        loop {
            let (status, headers, body) = self.attempt(http).await?;
            if status.is_success() {
                return Ok(Reply { headers, body });
            }
            let wait = self.repeatable.then(|| wait_before_retry(retries, status, &headers, roll())).flatten();
            let Some(wait) = wait else { return Err(ApiError::from_reply(status, &headers, &body)) };
            tokio::time::sleep(wait).await;
            retries += 1;
        }
    }

    async fn attempt(&self, http: &Http) -> Result<(StatusCode, HeaderMap, Bytes), ApiError> {
        let body = self.body.clone().map_or_else(empty_body, full_body);
        let request = http.request(self.method.clone(), &self.path, self.headers.clone(), body)?;
        let read = |reply: http::Response<hyper::body::Incoming>| async {
            let (head, body) = reply.into_parts();
            let body = read_limited(body, MAX_REPLY).await.map_err(|error| http.broken(error))?;
            Ok((head.status, head.headers, body))
        };
        http.exchange(request, read).await
    }
}

/// Sends a request whose body can be read only once, so it is not retried.
pub(super) async fn send_once(
    http: &Http,
    request: http::Request<Body>,
    limit: std::time::Duration,
) -> Result<Reply, ApiError> {
    let exchanged = async {
        let (head, body) = http.send(request).await?.into_parts();
        let body = read_limited(body, MAX_REPLY).await.map_err(|error| http.broken(error))?;
        Ok::<_, ApiError>((head, body))
    };
    let (head, body) = http.within(limit, exchanged).await?;
    match head.status.is_success() {
        true => Ok(Reply { headers: head.headers, body }),
        false => Err(ApiError::from_reply(head.status, &head.headers, &body)),
    }
}

impl Reply {
    pub(super) fn into_body(self) -> Bytes {
        self.body
    }

    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body).map_err(|error| ApiError::Protocol(error.to_string()))
    }
}
