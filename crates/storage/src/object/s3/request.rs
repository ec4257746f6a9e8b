//! One request to an S3 server: the URL, the signature, the limits, and the meaning of error responses.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use isopod_outbound::{PooledClient, RequestError, Trust, collect, sigv4};
use isopod_wire::error_chain;

use super::keys::KeyRing;
use super::sign;
use super::{S3Settings, StoreError, xml};

/// The slowest acceptable rate of an upload.
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;

/// The maximum size of a response that is not an object. Listings are the largest: up to 1000 keys of 1 KiB, each byte of
/// which may be encoded as three.
const MAX_DOCUMENT: usize = 16 << 20;

/// The maximum size of an object that a server without range support sends as a whole.
const MAX_WHOLE_OBJECT: usize = 96 << 20;

pub(super) type Query = Vec<(&'static str, String)>;

/// A client for one bucket.
#[derive(Debug)]
pub(super) struct Client {
    http: PooledClient,
    /// The scheme and host, and the part of the path before the key.
    origin: String,
    base_path: String,
    host: String,
    bucket: String,
    region: String,
    pub(super) keys: KeyRing,
    timeout: Duration,
}

/// A successful response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(super) fn tag(&self) -> Option<String> {
        self.header("etag").map(str::to_owned)
    }
}

impl Client {
    pub(super) fn new(settings: S3Settings) -> Result<Self, StoreError> {
        let endpoint = settings.endpoint.unwrap_or_else(|| format!("https://s3.{}.amazonaws.com", settings.region));
        let unusable = || StoreError::Unreachable { what: "start", reason: format!("{endpoint} is not a valid URL") };
        let uri: Uri = endpoint.trim_end_matches('/').parse().map_err(|_| unusable())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(unusable()) };
        if !matches!(scheme, "http" | "https") {
            return Err(unusable());
        }
        let base_path = format!("{}/{}", uri.path().trim_end_matches('/'), sign::escape_path(&settings.bucket));
        Ok(Self {
            http: PooledClient::new(&Trust::system(), settings.idle_connections),
            origin: format!("{scheme}://{authority}"),
            base_path,
            host: authority.as_str().to_owned(),
            bucket: settings.bucket,
            region: settings.region,
            keys: KeyRing::new(settings.keys),
            timeout: settings.request_timeout,
        })
    }

    /// The name of an object as the source of a copy.
    pub(super) fn copy_source(&self, key: &str) -> String {
        sign::escape_path(&format!("{}/{key}", self.bucket))
    }

    /// Sends a request and reads the whole response.
    pub(super) async fn ask(
        &self,
        what: &'static str,
        method: Method,
        key: Option<&str>,
        query: &Query,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Answer, StoreError> {
        // A big part must not fail forever on a slow connection.
        let timeout = self.timeout + Duration::from_secs(body.len() as u64 / MIN_BYTES_PER_SECOND);
        let request = self.request(what, method, key, query, headers, body)?;
        let answer = self.exchange(what, request, timeout, |_| MAX_DOCUMENT).await?;
        self.accept(what, key, answer)
    }

    /// Requests this many bytes of an object. The headers say which.
    pub(super) async fn get(&self, key: &str, headers: HeaderMap, length: u64) -> Result<Answer, StoreError> {
        let request = self.request("get", Method::GET, Some(key), &Query::new(), headers, Bytes::new())?;
        let limit = |status| match status {
            StatusCode::PARTIAL_CONTENT => usize::try_from(length).unwrap_or(usize::MAX),
            StatusCode::OK => MAX_WHOLE_OBJECT,
            _ => MAX_DOCUMENT,
        };
        let answer = self.exchange("get", request, self.timeout, limit).await?;
        self.accept("get", Some(key), answer)
    }

    /// Sends a request and reads the whole response, whatever its status. The status decides how long it may be.
    async fn exchange(
        &self,
        what: &'static str,
        request: Request<Full<Bytes>>,
        timeout: Duration,
        limit: impl FnOnce(StatusCode) -> usize,
    ) -> Result<Answer, StoreError> {
        let exchange = async {
            let (parts, body) = self.http.send(request).await?.into_parts();
            let body = collect(body, limit(parts.status)).await?;
            Ok::<_, RequestError>(Answer { status: parts.status, headers: parts.headers, body })
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(RequestError::TooLong(_))) => Err(StoreError::Garbled { what }),
            Ok(Err(error)) => Err(StoreError::Unreachable { what, reason: error_chain(&error) }),
            Err(_) => Err(StoreError::Unreachable { what, reason: "it took too long".to_owned() }),
        }
    }

    fn accept(&self, what: &'static str, key: Option<&str>, answer: Answer) -> Result<Answer, StoreError> {
        if answer.status.is_success() { Ok(answer) } else { Err(self.refusal(what, key.unwrap_or_default(), &answer)) }
    }

    fn request(
        &self,
        what: &'static str,
        method: Method,
        key: Option<&str>,
        query: &Query,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, StoreError> {
        let path = match key {
            Some(key) => format!("{}/{}", self.base_path, sign::escape_path(key)),
            None => self.base_path.clone(),
        };
        let mark = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}{path}{mark}{}", self.origin, sign::query(query));
        // With TLS, computing the hash of the body is unnecessary.
        let body_hash =
            if self.origin.starts_with("https") { "UNSIGNED-PAYLOAD".to_owned() } else { sigv4::sha256(&body) };
        // Servers require the length for every body, but the HTTP library omits it for an empty one.
        let length = matches!(method, Method::PUT | Method::POST).then(|| HeaderValue::from(body.len()));
        let request = Request::builder().method(method).uri(uri).header("host", &self.host).body(Full::new(body));
        let (mut parts, body) = request.map_err(|_| StoreError::Garbled { what })?.into_parts();
        parts.headers.extend(headers);
        sign::sign(&mut parts, &self.keys.current()?, &self.region, &body_hash, SystemTime::now());
        parts.headers.extend(length.map(|length| (CONTENT_LENGTH, length)));
        Ok(Request::from_parts(parts, body))
    }

    fn refusal(&self, what: &'static str, key: &str, answer: &Answer) -> StoreError {
        let text = answer.text();
        let code = xml::text(&text, "Code").unwrap_or_default().to_owned();
        let region = answer.header("x-amz-bucket-region");
        match answer.status {
            _ if code == "NoSuchBucket" => StoreError::NoBucket(self.bucket.clone()),
            _ if matches!(code.as_str(), "PermanentRedirect" | "AuthorizationHeaderMalformed")
                || answer.status.is_redirection() =>
            {
                StoreError::WrongRegion { region: region.unwrap_or("unknown").to_owned() }
            }
            StatusCode::NOT_FOUND => StoreError::NotFound(key.to_owned()),
            StatusCode::PRECONDITION_FAILED => StoreError::Changed(key.to_owned()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => StoreError::Denied { code },
            status => StoreError::Refused { what, status: status.as_u16(), code },
        }
    }
}
