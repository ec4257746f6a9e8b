//! Keeps connections open between requests, for a service that gets many of them.
//!
//! The policy doesn't apply here, so this is only for services that the operator configures, such as a bucket. Redirects
//! are not followed.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::{RequestError, Trust};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A client with a pool of connections.
#[derive(Clone, Debug)]
pub struct PooledClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl PooledClient {
    /// Keeps at most `max_idle` unused connections to each host.
    pub fn new(trust: &Trust, max_idle: usize) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let tls = HttpsConnectorBuilder::new().with_tls_config(trust.client_config());
        let connector = tls.https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(max_idle)
            .build(connector);
        Self { client }
    }

    /// Sends the request and reads the head of the response. [`collect`](crate::collect) reads the rest.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, RequestError> {
        Ok(self.start(request).await?)
    }

    /// Not `async`, so that the client is compiled here. The body of an `async fn` is compiled in every crate that polls it.
    fn start(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        self.client.request(request)
    }
}
