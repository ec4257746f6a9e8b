//! MCP over streamable HTTP: many clients, each with a session of its own.
//!
//! ```text
//! POST initialize ──▶ session (bound to its owner) ──▶ POST, GET ──▶ DELETE, or idle ──▶ ended, its sandboxes killed
//!                        └─ the server restarts: found again by its record, with its sandboxes
//! ```
//!
//! Since protocol version 2026-07-28 there are no sessions. Then all requests of an owner share one, which begins with the
//! first of them and ends like the others. Who calls is known before a request gets here; tools call the public API with
//! the credentials of that very caller, so they may do what the caller may do.

mod events;
mod manager;
mod options;
mod record;
mod refusal;
mod registry;
mod session;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use isopod_client::{Client, ClientConfig, Connector};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::config::{McpConfig, Transfers};
use crate::server::McpServer;
use manager::{RequestManager, Visit};
use options::Options;
use record::Records;
use refusal::Refusal;
use registry::Registry;
pub use session::Body as HttpBody;
use session::{Body, Session};

const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";
/// Since this version, streams begin with an event without data, which older clients take for a broken message.
const PRIMED_SINCE: &str = "2025-11-25";
/// A message of the client: more than the largest upload, in base64.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// Settings of MCP over HTTP.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// A directory of its own for the records of sessions. Without it, sessions end with the server.
    pub records: Option<PathBuf>,
    /// The template of new sandboxes, unless the client's URL names another one.
    pub template: String,
    /// How long sandboxes live after the server is gone.
    pub timeout: Duration,
    /// How many sandboxes a session may have at the same time, unless the client's URL says otherwise.
    pub max_sandboxes: usize,
    /// How many bytes of each output or file a result holds.
    pub max_output: usize,
    /// How many sessions there may be.
    pub max_sessions: usize,
    /// How many of them one key, or one user of a team, may have.
    pub max_sessions_of_owner: usize,
    /// How long a session lives without an open request, and without a server.
    pub idle: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            records: None,
            template: "code-interpreter-v1".to_owned(),
            timeout: Duration::from_secs(300),
            max_sandboxes: 5,
            max_output: 32 << 10,
            max_sessions: 500,
            max_sessions_of_owner: 20,
            idle: Duration::from_secs(1800),
        }
    }
}

/// Who sends a request.
#[derive(Debug)]
pub struct Visitor {
    /// The team and the key or user. Sessions belong to it.
    pub owner: String,
    /// The headers that the caller authenticated with. Tools send them to the API.
    pub credentials: HeaderMap,
    /// How tools reach the API.
    pub connector: Connector,
    /// The API's URL, with the host name by which the caller knows the server.
    pub api_url: String,
    /// The scheme of preview URLs.
    pub preview_scheme: &'static str,
}

/// MCP over streamable HTTP.
#[derive(Debug)]
pub struct McpHttp {
    config: HttpConfig,
    registry: Arc<Registry>,
    records: Records,
    /// Held while a session of an earlier server is restored, so that it is done once.
    restoring: tokio::sync::Mutex<()>,
    stop: CancellationToken,
}

/// What is looked at of a message before it is handled.
#[derive(Debug, Default, Deserialize)]
struct Peeked {
    #[serde(default)]
    method: String,
    #[serde(default)]
    params: PeekedParams,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PeekedParams {
    protocol_version: String,
}

impl McpHttp {
    /// Opens the endpoint. Streams end when `stop` is cancelled; sessions and their sandboxes stay for the next server.
    pub fn open(config: HttpConfig, stop: CancellationToken) -> Arc<Self> {
        let records = Records::new(config.records.clone());
        let registry = Arc::new(Registry::new(config.max_sessions, config.max_sessions_of_owner));
        Arc::new(Self { config, registry, records, restoring: tokio::sync::Mutex::default(), stop })
    }

    /// Ends idle sessions, until the server stops.
    pub async fn run(self: Arc<Self>) {
        let pause = (self.config.idle / 4).clamp(Duration::from_millis(50), Duration::from_secs(30));
        self.records.prune(self.config.idle).await;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => self.registry.end_idle(self.config.idle).await,
                () = self.stop.cancelled() => return self.registry.stop().await,
            }
        }
    }

    /// Answers one request.
    pub async fn answer(&self, visitor: Visitor, request: Request<Bytes>) -> Response<Body> {
        match self.try_answer(visitor, request).await {
            Ok(response) => response,
            Err(refusal) => refusal.into_response(),
        }
    }

    async fn try_answer(&self, visitor: Visitor, request: Request<Bytes>) -> Result<Response<Body>, Refusal> {
        let options = Options::parse(request.uri().query().unwrap_or_default())?;
        let id = match request.headers().get(SESSION_HEADER) {
            Some(id) => Some(id.to_str().map_err(|_| Refusal::NoSession)?.to_owned()),
            None => None,
        };
        let peeked: Peeked = serde_json::from_slice(request.body()).unwrap_or_default();
        // Held until a restored session has its streams.
        let mut _restoring = None;
        let visit = match id {
            Some(id) => match self.registry.find(&visitor.owner, &id) {
                Some(session) => Visit::known(session),
                None => {
                    _restoring = Some(self.restoring.lock().await);
                    self.restored(&visitor, &id).await?
                }
            },
            None if peeked.method == "initialize" => Visit::new(self.new_session(&visitor, options)?),
            None if request.method() != Method::POST => return Err(Refusal::NeedsSession),
            None => Visit::without_session(self.shared(&visitor, options).await?),
        };
        let session = visit.session();
        session.renew(&visitor)?;
        let busy = session.busy();
        let is_delete = request.method() == Method::DELETE;
        let version = request.headers().get(VERSION_HEADER).and_then(|version| version.to_str().ok());
        let is_primed = version.unwrap_or(&peeked.params.protocol_version) >= PRIMED_SINCE;
        let mut response = self.service(visit, is_primed).handle(request.map(Full::new)).await;
        // The session has ended, and clients take 202 for a failure.
        if is_delete && response.status() == StatusCode::ACCEPTED {
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        Ok(response.map(|body| Body::new(body, busy)))
    }

    fn service(&self, visit: Visit, is_primed: bool) -> StreamableHttpService<McpServer, RequestManager> {
        let session = visit.session();
        let mut config = StreamableHttpServerConfig::default()
            // The server checks origins and host names of all requests.
            .disable_allowed_hosts()
            .with_json_response(true)
            .with_max_request_body_bytes(MAX_MESSAGE)
            .with_cancellation_token(self.stop.child_token());
        config.sse_retry = config.sse_retry.filter(|_| is_primed);
        config.session_store = Some(visit.store());
        let manager = RequestManager::new(Arc::clone(&self.registry), visit, is_primed);
        let factory = move || Ok(McpServer::new(Arc::clone(&session.sandboxes), session.ended.clone()));
        StreamableHttpService::new(factory, Arc::new(manager), config)
    }

    fn new_session(&self, visitor: &Visitor, options: Options) -> Result<Arc<Session>, Refusal> {
        let place = self.registry.reserve(&visitor.owner)?;
        let record = self.records.new_record(&visitor.owner, options.clone());
        Ok(Session::new(visitor, self.mcp_config(visitor, options)?, record, place))
    }

    /// A session of an earlier server.
    async fn restored(&self, visitor: &Visitor, id: &str) -> Result<Visit, Refusal> {
        if let Some(session) = self.registry.find(&visitor.owner, id) {
            return Ok(Visit::known(session));
        }
        let found = self.records.find(id, &visitor.owner, self.config.idle).await;
        let (record, saved) = found.ok_or(Refusal::NoSession)?;
        let initialize = saved.initialize.ok_or(Refusal::NoSession)?;
        let place = self.registry.reserve(&visitor.owner)?;
        let session = Session::new(visitor, self.mcp_config(visitor, saved.options)?, record, place);
        session.sandboxes.restore(saved.inventory).await;
        Ok(Visit::restored(session, initialize))
    }

    /// What all requests without a session share.
    async fn shared(&self, visitor: &Visitor, options: Options) -> Result<Arc<Session>, Refusal> {
        let _restoring = self.restoring.lock().await;
        let key = format!("{} {options:?}", visitor.owner);
        if let Some(session) = self.registry.find(&visitor.owner, &key) {
            return Ok(session);
        }
        let place = self.registry.reserve(&visitor.owner)?;
        let (record, inventory) = match self.records.find(&key, &visitor.owner, self.config.idle).await {
            Some((record, saved)) => (record, saved.inventory),
            None => (self.records.new_record(&visitor.owner, options.clone()), Default::default()),
        };
        record.begin(&key, None).await;
        let session = Session::new(visitor, self.mcp_config(visitor, options)?, record, place);
        session.sandboxes.restore(inventory).await;
        self.registry.insert(&key, Arc::clone(&session));
        Ok(session)
    }

    fn mcp_config(&self, visitor: &Visitor, options: Options) -> Result<McpConfig, Refusal> {
        Ok(McpConfig {
            client: client_of(visitor)?,
            preview_scheme: visitor.preview_scheme,
            template: options.template.unwrap_or_else(|| self.config.template.clone()),
            session: options.session,
            timeout: self.config.timeout,
            max_sandboxes: options.max_sandboxes.unwrap_or(self.config.max_sandboxes),
            max_output: self.config.max_output,
            all_sandboxes: options.all_sandboxes,
            transfers: Transfers::InCalls,
        })
    }
}

fn client_of(visitor: &Visitor) -> Result<Client, Refusal> {
    let config = ClientConfig {
        api_url: visitor.api_url.clone(),
        sandbox_url: Some(visitor.api_url.clone()),
        ..ClientConfig::default()
    };
    Client::with_credentials(config, visitor.connector.clone(), visitor.credentials.clone()).map_err(Refusal::Host)
}
