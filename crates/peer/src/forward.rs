//! Sends one request to another member and returns its response.

use std::io;

use axum::body::Body;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode, Uri, Version};
use hyper::client::conn::http1::Builder;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use isopod_api::HopSignal;
use tokio_util::sync::CancellationToken;

use crate::dial::DialError;
use crate::origin::Origin;
use crate::pool::Pool;
use crate::server_id::ServerId;

/// The buffer for each direction after an upgrade.
const UPGRADED_BUFFER: usize = 64 << 10;
/// Headers that apply to one connection, except for those of an upgrade.
const CONNECTION_HEADERS: [&str; 3] = ["connection", "keep-alive", "proxy-connection"];

/// Why a request did not get a response from another member.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// Nothing was sent.
    #[error("could not connect to the server")]
    NotSent(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nobody knows whether the request was carried out.
    #[error("the connection to the server broke before its response")]
    Lost(#[source] hyper::Error),
}

/// Forwards the request over a stream of its own. `stop` ends a connection that was upgraded.
pub(crate) async fn forward(
    pool: &Pool,
    server: &ServerId,
    origin: &Origin,
    request: Request<Body>,
    stop: &CancellationToken,
) -> Result<Response<Body>, ForwardError> {
    let stream = pool.open(server, origin).await.map_err(|error: DialError| ForwardError::NotSent(error.into()))?;
    let mut builder = Builder::new();
    // As the client wrote them, and as the service in the sandbox did.
    builder.preserve_header_case(true).title_case_headers(true);
    let handshake = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| ForwardError::NotSent(error.into()))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(error = isopod_wire::error_chain(&error), "a forwarded request broke");
        }
    });
    let mut request = prepared(request);
    let client = request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let mut response = sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
        Some(_) => ForwardError::NotSent(Box::new(io::Error::from(io::ErrorKind::BrokenPipe))),
        None => ForwardError::Lost(error.into_error()),
    })?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        if let Some(client) = client {
            tokio::spawn(join(client, hyper::upgrade::on(&mut response), stop.clone()));
        }
        return Ok(response.map(|_| Body::empty()));
    }
    CONNECTION_HEADERS.iter().for_each(|name| drop(response.headers_mut().remove(*name)));
    Ok(response.map(Body::new))
}

/// What the other member has said about a response, for this server and not for the client.
pub(crate) fn take_signal(headers: &mut HeaderMap) -> Option<HopSignal> {
    let signal = headers.get(HopSignal::HEADER).and_then(|value| HopSignal::parse(value.as_bytes()));
    headers.remove(HopSignal::HEADER);
    signal
}

/// The same request as HTTP/1.1, for an origin and not for a proxy.
fn prepared(mut request: Request<Body>) -> Request<Body> {
    let authority = request.uri().authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok());
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    if let (None, Some(authority)) = (headers.get(header::HOST), authority) {
        headers.insert(header::HOST, authority);
    }
    let upgrades = |value: &HeaderValue| {
        value.to_str().is_ok_and(|text| text.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")))
    };
    let is_upgrade = headers.contains_key(header::UPGRADE) && headers.get_all(header::CONNECTION).iter().any(upgrades);
    CONNECTION_HEADERS.iter().for_each(|name| drop(headers.remove(*name)));
    match is_upgrade {
        true => drop(headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"))),
        false => drop(headers.remove(header::UPGRADE)),
    }
    request
}

/// Copies bytes both ways after a protocol switch, until one side ends.
async fn join(client: OnUpgrade, server: OnUpgrade, stop: CancellationToken) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    tokio::select! {
        () = stop.cancelled() => {}
        _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, UPGRADED_BUFFER, UPGRADED_BUFFER) => {}
    }
}
