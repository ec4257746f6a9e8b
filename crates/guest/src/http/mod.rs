//! HTTP/1.1 on the guest's socket: connections, who may ask, and what answers.

mod cors;
mod query;
mod reply;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;

pub(crate) use query::Query;
pub(crate) use reply::{
    Body, HttpError, Reply, empty_body, full_body, json_reply, status_reply, stream_body, text_reply,
};

use crate::guest::Guest;
use crate::settings::{InitRequest, Settings};
use crate::{files, interpreter, rpc};

/// How long a connection may be idle or in the middle of a request's head. Longer than clients keep idle connections
/// (300 s), so that none is closed under a request that is on its way.
const HEAD_PATIENCE: Duration = Duration::from_secs(360);
/// How long a small JSON body may take to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// How much of a refused request's body is read, and how long that may take.
const MAX_DRAIN: usize = 64 << 10;
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);
/// The largest head of a request, and how much of a body is read or written at once.
const BUFFER: usize = 256 << 10;
/// The largest JSON body outside of RPC.
pub(crate) const MAX_JSON: usize = 4 << 20;

/// The host shows with it that a request to `/init` or `/logs` is its own; the edge lets nobody else's through.
const CONTROL_HEADER: &str = "x-isopod-control";
const TOKEN_HEADER: &str = "x-access-token";

/// Serves connections for ever.
pub(crate) async fn accept(listener: UnixListener, guest: Arc<Guest>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let guest = Arc::clone(&guest);
                tokio::spawn(serve(stream, move |request| {
                    let guest = Arc::clone(&guest);
                    async move { answer(&guest, request).await }
                }));
            }
            // Out of descriptors or memory: others will give some back.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Serves one connection to its end.
pub(crate) async fn serve<A, F>(stream: impl AsyncRead + AsyncWrite + Unpin, answer: A)
where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Reply>,
{
    let service = service_fn(|request| {
        let reply = answer(request);
        async move { Ok::<_, Infallible>(reply.await) }
    });
    // An error here is a client that went away or does not speak HTTP; hyper has already told it what it could.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(guest: &Arc<Guest>, request: Request<Incoming>) -> Reply {
    with_cors(request, async |request| route(guest, request).await.unwrap_or_else(HttpError::into_reply)).await
}

/// Answers what browsers ask before they ask, and lets them read the reply of what they do ask.
pub(crate) async fn with_cors(
    request: Request<Incoming>,
    route: impl AsyncFnOnce(Request<Incoming>) -> Reply,
) -> Reply {
    let from_browser = request.headers().contains_key(http::header::ORIGIN);
    let mut reply = if cors::is_preflight(&request) { cors::preflight(&request) } else { route(request).await };
    if from_browser {
        cors::allow(reply.headers_mut());
    }
    reply
}

async fn route(guest: &Arc<Guest>, request: Request<Incoming>) -> Result<Reply, HttpError> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    match (&method, path.as_str()) {
        (&Method::GET | &Method::HEAD, "/health") => return Ok(status_reply(StatusCode::NO_CONTENT)),
        (&Method::POST, "/init") => return init(guest, request).await,
        (&Method::GET, "/logs") => return logs(guest, &request),
        (&Method::GET, "/interpreter") => return interpreter::status(guest, &request),
        _ => {}
    }
    let settings = guest.settings().ok_or_else(|| {
        HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "the sandbox is not set up yet, try again in a moment")
    })?;
    // Files may also be asked for with a signature, so they check for themselves.
    match (&method, path.as_str()) {
        (&Method::GET | &Method::HEAD, "/files") => return files::download(&settings, request).await,
        (&Method::POST, "/files") => return files::upload(&settings, request).await,
        _ => {
            if let Err(refused) = authorize(&settings, &request) {
                drain(request.into_body()).await;
                return Err(refused);
            }
        }
    }
    match (&method, path.as_str()) {
        (&Method::POST, "/files/compose") => files::compose(&settings, request).await,
        (&Method::GET, "/files/tree") => files::tree(&settings, request).await,
        (&Method::GET, "/envs") => Ok(json_reply(&settings.env)),
        (&Method::GET, "/metrics") => Ok(json_reply(&guest.meters.read())),
        _ => match rpc::serve(guest, request).await {
            Some(reply) => Ok(reply),
            None if method == Method::POST && path.matches('/').count() == 2 => Ok(rpc::unknown_method(&path)),
            None => Err(HttpError::new(StatusCode::NOT_FOUND, format!("{path} not found"))),
        },
    }
}

pub(crate) fn authorize(settings: &Settings, request: &Request<Incoming>) -> Result<(), HttpError> {
    let Some(token) = &settings.access_token else { return Ok(()) };
    match request.headers().get(TOKEN_HEADER) {
        Some(given) if same_secret(given.as_bytes(), token.as_bytes()) => Ok(()),
        _ => Err(HttpError::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized access, please provide a valid access token or method signing if supported",
        )),
    }
}

/// Reads what is left of a small body before a refusal. With unread bytes hyper closes the connection after its answer,
/// and who has just sent the next request on it would lose that one.
pub(crate) async fn drain(body: Incoming) {
    let _ = tokio::time::timeout(DRAIN_PATIENCE, Limited::new(body, MAX_DRAIN).collect()).await;
}

/// The token that a request shows, if any.
pub(crate) fn shown_token(request: &Request<Incoming>) -> Option<&[u8]> {
    request.headers().get(TOKEN_HEADER).map(HeaderValue::as_bytes).filter(|token| !token.is_empty())
}

/// Compares without telling by its duration where the difference is.
pub(crate) fn same_secret(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// The name in `Authorization: Basic`, as the SDKs send it (without a password).
pub(crate) fn basic_user(header: Option<&HeaderValue>) -> Option<String> {
    let (scheme, encoded) = header?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let name = decoded.split_once(':').map_or(decoded.as_str(), |(name, _)| name);
    (!name.is_empty()).then(|| name.to_owned())
}

async fn init(guest: &Guest, request: Request<Incoming>) -> Result<Reply, HttpError> {
    check_host(&request)?;
    let request: InitRequest = read_json(request).await?;
    if let Some(hostname) = &request.hostname
        && rustix::process::getpid().is_init()
    {
        // Only tidiness, and not allowed in every sandbox.
        let _ = rustix::system::sethostname(hostname.as_bytes());
    }
    guest.set_settings(request.into());
    Ok(status_reply(StatusCode::NO_CONTENT))
}

/// What processes printed after the position that the host has read up to.
fn logs(guest: &Guest, request: &Request<Incoming>) -> Result<Reply, HttpError> {
    check_host(request)?;
    let query = Query::parse(request.uri().query());
    let after = query.get("after").unwrap_or("0").parse();
    let after = after.map_err(|_| HttpError::new(StatusCode::BAD_REQUEST, "after must be a number"))?;
    Ok(json_reply(&guest.logs.page(after)))
}

/// Some paths exist for the host only.
pub(crate) fn check_host(request: &Request<Incoming>) -> Result<(), HttpError> {
    match request.headers().get(CONTROL_HEADER) {
        Some(value) if value == "1" => Ok(()),
        _ => Err(HttpError::new(StatusCode::NOT_FOUND, format!("{} not found", request.uri().path()))),
    }
}

/// A JSON body; an empty one counts as `{}`.
pub(crate) async fn read_json<T: serde::de::DeserializeOwned>(request: Request<Incoming>) -> Result<T, HttpError> {
    let bytes = read_body(request, MAX_JSON).await?;
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(bytes)
        .map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, format!("invalid request body: {error}")))
}

/// The whole body of a request that is at most that long.
pub(crate) async fn read_body(request: Request<Incoming>, at_most: usize) -> Result<Bytes, HttpError> {
    let body = Limited::new(request.into_body(), at_most);
    let collected = tokio::time::timeout(BODY_PATIENCE, body.collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "request body is too large"))
        }
        Ok(Err(error)) => Err(HttpError::new(StatusCode::BAD_REQUEST, format!("cannot read request body: {error}"))),
        Err(_) => Err(HttpError::new(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_basic_authorization_names_a_user() {
        let user = |text: &str| basic_user(Some(&text.parse().unwrap()));
        assert_eq!(user("Bearer cm9vdDo="), None);
        assert_eq!(user("Basic %%%"), None);
        assert_eq!(user("Basic Og=="), None);
        assert_eq!(user("Basic"), None);
        assert_eq!(user("Basic cm9vdDo="), Some("root".into()));
        assert_eq!(user("basic cm9vdA=="), Some("root".into()));
    }

    #[test]
    fn secrets_compare_whole() {
        assert!(same_secret(b"abc", b"abc"));
        assert!(!same_secret(b"abc", b"abd") && !same_secret(b"abc", b"ab") && !same_secret(b"", b"a"));
    }
}
