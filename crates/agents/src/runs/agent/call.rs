//! One HTTP request to an agent, over http or https, with a bounded answer. Redirects are not followed.

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

/// What an agent may answer at most.
const MAX_ANSWER: usize = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an agent did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error("the node has no agent URL, and the server knows no agent service")]
    NoHome,
    #[error("the agent cannot be reached")]
    Target(#[source] TargetError),
    #[error("the agent could not be connected to")]
    Connect(#[source] std::io::Error),
    #[error("the agent's host name cannot stand in a certificate")]
    ServerName(#[source] InvalidDnsNameError),
    #[error("the agent could not prove who it is, or does not speak TLS")]
    Tls(#[source] std::io::Error),
    #[error("the request could not be written")]
    Request(#[source] http::Error),
    #[error("the agent broke off")]
    Http(#[source] hyper::Error),
    #[error("the agent broke off in its answer, or it is larger than {MAX_ANSWER} bytes")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the agent answered {status}: {body}")]
    Status { status: StatusCode, body: String },
    #[error("the agent answered something that is no reply: {body:?}")]
    Garbage { source: serde_json::Error, body: String },
    #[error("the agent gave no answer in {0:?}")]
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
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(AgentError::Body)?;
        Ok((status, body.to_bytes()))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = answer.as_mut() => answer,
        // It may end right after the last byte of the answer: what was read is there all the same.
        _ = connection => answer.await,
    }
}
