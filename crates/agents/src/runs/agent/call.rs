//! Sends one request to an agent, over http or https. The size of the reply is limited, and redirects are not followed.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use isopod_outbound::{Policy, Target, TargetError, Trust};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The maximum size of an agent's reply.
const MAX_REPLY: usize = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a call to an agent failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error("the node has no agent URL, and the server has no agent service")]
    NoService,
    #[error("this server has no agent service to make plans; set `runs.agent_url` in its settings")]
    NoPlanner,
    #[error("the agent cannot be reached")]
    Target(#[source] TargetError),
    #[error("could not connect to the agent")]
    Connect(#[source] std::io::Error),
    #[error("the agent's host name is not valid in a certificate")]
    ServerName(#[source] InvalidDnsNameError),
    #[error("the agent's certificate is not trusted, or it does not support TLS")]
    Tls(#[source] std::io::Error),
    #[error("could not build the request")]
    Request(#[source] http::Error),
    #[error("the connection to the agent failed")]
    Http(#[source] hyper::Error),
    #[error("the agent's reply is incomplete or larger than {MAX_REPLY} bytes")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the agent returned {status}: {body}")]
    Status { status: StatusCode, body: String },
    #[error("the agent returned an invalid reply: {body:?}")]
    InvalidReply { source: serde_json::Error, body: String },
    #[error("the agent did not reply within {0:?}")]
    Timeout(Duration),
}

/// Makes requests.
#[derive(Debug)]
pub(super) struct Caller {
    trust: Trust,
}

impl Caller {
    pub(super) fn new(trust: Trust) -> Self {
        Self { trust }
    }

    pub(super) async fn call(
        &self,
        method: Method,
        url: &str,
        body: Vec<u8>,
        policy: &Policy,
    ) -> Result<(StatusCode, Bytes), AgentError> {
        let target = Target::parse(url).map_err(AgentError::Target)?;
        let address = target.resolve(policy).await.map_err(AgentError::Target)?;
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address.as_slice())).await;
        let stream = connecting.map_err(|_| AgentError::Timeout(CONNECT_TIMEOUT))?.map_err(AgentError::Connect)?;
        if !target.tls {
            return send(stream, method, &target, body).await;
        }
        let name = ServerName::try_from(target.host.clone()).map_err(AgentError::ServerName)?;
        let stream = self.trust.connector().connect(name, stream).await.map_err(AgentError::Tls)?;
        send(stream, method, &target, body).await
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    method: Method,
    target: &Target,
    body: Vec<u8>,
) -> Result<(StatusCode, Bytes), AgentError> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(AgentError::Http)?;
    let request = Request::builder()
        .method(method)
        .uri(&target.path)
        .header("host", &target.authority)
        .header("content-type", "application/json")
        .header("user-agent", concat!("isopod/", env!("CARGO_PKG_VERSION")))
        .header("connection", "close")
        .body(Body::from(body))
        .map_err(AgentError::Request)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(AgentError::Http)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_REPLY).collect().await.map_err(AgentError::Body)?;
        Ok((status, body.to_bytes()))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = answer.as_mut() => answer,
        // The connection may end right after the last byte of the reply. What was read is still there.
        _ = connection => answer.await,
    }
}
