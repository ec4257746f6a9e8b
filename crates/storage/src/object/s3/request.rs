//! One request to an S3 server: the URL, the signature, the deadline, and the meaning of error responses.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use isopod_outbound::{Trust, sigv4};

use super::keys::KeyRing;
use super::sign;
use super::{S3Settings, StoreError, xml};
use crate::error_chain::error_chain;

/// The slowest acceptable rate of an upload.
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;

pub(super) type Query = Vec<(&'static str, String)>;

/// A client for one bucket.
#[derive(Debug)]
pub(super) struct Client {
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
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
            http: http_client(settings.idle_connections),
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
        let unreachable = |reason: String| StoreError::Unreachable { what, reason };
        let exchange = async {
            let answer = self.http.request(request).await.map_err(|error| unreachable(error_chain(&error)))?;
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.map_err(|error| unreachable(error_chain(&error)))?.to_bytes();
            Ok(Answer { status: parts.status, headers: parts.headers, body })
        };
        let answer =
            tokio::time::timeout(timeout, exchange).await.map_err(|_| unreachable("it took too long".to_owned()))??;
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

fn http_client(idle: usize) -> HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>> {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(Duration::from_secs(5)));
    let tls = Trust::system().client_config();
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
    HttpClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(idle)
        .build(connector)
}
