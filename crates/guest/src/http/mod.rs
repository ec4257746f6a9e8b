//! HTTP/1.1 as the guest speaks it on all its sockets: connections, bodies, credentials and replies. `server` and
//! `interpreter` hold the routes.

mod body;
mod cors;
mod credentials;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod host_connection;
mod query;
mod reply;

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use body::{MAX_JSON, drain, read_body, read_json};
pub(crate) use credentials::{authorize, basic_user, check_host, same_secret, shown_token};
pub(crate) use host_connection::{Attached, HostConnection};
pub(crate) use query::Query;
pub(crate) use reply::{
    Body, HttpError, Reply, empty_body, full_body, json_bytes_reply, json_reply, status_reply, stream_body, text_reply,
};

/// How long a connection may be idle or take to send a request's head. Longer than clients keep idle connections (300 s), so
/// that the guest never closes a connection on which a request is on its way.
const HEAD_TIMEOUT: Duration = Duration::from_secs(360);
/// The largest request head, and how much of a body is read or written at once.
const BUFFER: usize = 256 << 10;

/// Serves one connection until it closes.
pub(crate) async fn serve<A, F>(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, answer: A)
where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Reply>,
{
    let service = service_fn(|request| {
        let reply = answer(request);
        async move { Ok::<_, Infallible>(reply.await) }
    });
    // An error here means that the client disconnected or does not speak HTTP. hyper has already replied where it could.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}

/// Answers the preflight requests of browsers, and lets browsers read the other replies.
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
