//! Sends one request to an agent, over http or https. The size of the reply is limited, and redirects are not followed.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use isopod_outbound::{Policy, RequestError, Target, Trust, connect};

/// The maximum size of an agent's reply.
const MAX_REPLY: usize = 16 << 20;
/// The time limit for the name lookup, the connection and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a call to an agent failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error("the node has no agent URL, and the server has no agent service")]
    NoService,
    #[error("this server has no agent service to make plans; set `runs.agent_url` in its settings")]
    NoPlanner,
    #[error("the request to the agent failed")]
    Request(#[source] RequestError),
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
        let (target, request) = prepare(method, url, body).map_err(AgentError::Request)?;
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, connect(&target, &self.trust, policy)).await;
        let connection = connecting.map_err(|_| AgentError::Timeout(CONNECT_TIMEOUT))?.map_err(AgentError::Request)?;
        connection.fetch(request, MAX_REPLY).await.map_err(AgentError::Request)
    }
}

fn prepare(method: Method, url: &str, body: Vec<u8>) -> Result<(Target, Request<Body>), RequestError> {
    let target = Target::parse(url)?;
    let request = Request::builder()
        .method(method)
        .uri(&target.path)
        .header("host", &target.authority)
        .header("content-type", "application/json")
        .header("user-agent", concat!("isopod/", env!("CARGO_PKG_VERSION")))
        .header("connection", "close")
        .body(Body::from(body))?;
    Ok((target, request))
}
