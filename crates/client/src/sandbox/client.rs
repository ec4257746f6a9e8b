//! A client for a server and a key.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use isopod_guest_client::transport::{BaseUrl, Body, Connector, Http, Trust, UrlError};
use isopod_wire::SandboxId;

use super::address::{DEFAULT_DOMAIN, edge_url};
use super::call::{Call, Reply, send_once};
use super::error::ApiError;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const USER_AGENT: &str = concat!("isopod-client/", env!("CARGO_PKG_VERSION"));

/// How to reach a server.
#[derive(Clone, Default)]
pub struct ClientConfig {
    /// The URL of the API, such as `http://localhost:3000`.
    pub api_url: String,
    /// The team's key.
    pub api_key: String,
    /// The URL of the edge, if it has an address of its own or shares the API's. Without it, a sandbox is reached under
    /// its own host name, over https.
    pub sandbox_url: Option<String>,
    /// The domain of sandboxes, for servers that do not report it.
    pub domain: Option<String>,
}

impl fmt::Debug for ClientConfig {
    /// Does not print the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("api_url", &self.api_url)
            .field("sandbox_url", &self.sandbox_url)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// `api_url` is not a URL.
    #[error("the API's URL is invalid")]
    ApiUrl(#[source] UrlError),
    /// `sandbox_url` is not a URL.
    #[error("the URL of the sandboxes is invalid")]
    SandboxUrl(#[source] UrlError),
    /// The key is empty or has characters that a header cannot contain.
    #[error("the API key is empty or has invalid characters")]
    ApiKey,
}

/// A client for one server and one team. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: Http,
    connector: Connector,
    /// The configured edge. Its connections serve all sandboxes.
    edge: Option<Http>,
    domain: String,
    /// Whether calls are retried if the server is busy.
    retries: bool,
    /// Set if the server supports only version 1 of create and connect.
    v1_only: Arc<AtomicBool>,
}

impl Client {
    /// Creates a client over TCP, or over TLS with this machine's trusted authorities if a URL starts with `https`.
    /// Sends nothing yet.
    ///
    /// # Errors
    /// If a URL or the key is invalid.
    pub fn new(config: ClientConfig) -> Result<Self, ConfigError> {
        Self::with_connector(config, Connector::tls(Trust::system()))
    }

    /// Creates a client with a custom connector, for example with other authorities.
    ///
    /// # Errors
    /// If a URL or the key is invalid.
    pub fn with_connector(config: ClientConfig, connector: Connector) -> Result<Self, ConfigError> {
        let mut key = HeaderValue::try_from(&config.api_key).map_err(|_| ConfigError::ApiKey)?;
        if key.is_empty() {
            return Err(ConfigError::ApiKey);
        }
        key.set_sensitive(true);
        Self::with_credentials(config, connector, HeaderMap::from_iter([(API_KEY, key)]))
    }

    /// Creates a client that sends these headers instead of a key: the credentials of somebody it acts for.
    ///
    /// # Errors
    /// If a URL is invalid.
    pub fn with_credentials(
        config: ClientConfig,
        connector: Connector,
        credentials: HeaderMap,
    ) -> Result<Self, ConfigError> {
        let api: BaseUrl = config.api_url.parse().map_err(ConfigError::ApiUrl)?;
        let edge = config.sandbox_url.as_deref().map(str::parse).transpose().map_err(ConfigError::SandboxUrl)?;
        let mut headers = common_headers();
        headers.extend(credentials);
        let http = Http::new(connector.clone(), api, headers, REQUEST_TIMEOUT);
        let edge = edge.map(|edge| Http::new(connector.clone(), edge, common_headers(), REQUEST_TIMEOUT));
        let domain = config.domain.filter(|domain| !domain.is_empty()).unwrap_or_else(|| DEFAULT_DOMAIN.to_owned());
        Ok(Self { http, connector, edge, domain, retries: true, v1_only: Arc::default() })
    }

    /// Sets the time limit of a call. The default is a minute.
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.http.set_timeout(timeout);
        if let Some(edge) = &mut self.edge {
            edge.set_timeout(timeout);
        }
        self
    }

    /// Makes a call with another time limit.
    pub(crate) async fn call_within(&self, limit: Duration, call: Call) -> Result<Reply, ApiError> {
        let mut http = self.http.clone();
        http.set_timeout(limit.max(http.timeout()));
        call.send(&http).await
    }

    /// For calls whose bodies do not fit into memory.
    pub(crate) fn http(&self) -> &Http {
        &self.http
    }

    /// Disables retries, for callers that retry themselves.
    pub fn without_retries(mut self) -> Self {
        self.retries = false;
        self
    }

    pub(super) fn domain(&self) -> &str {
        &self.domain
    }

    pub(crate) async fn call(&self, call: Call) -> Result<Reply, ApiError> {
        let call = if self.retries { call } else { call.never_repeated() };
        call.send(&self.http).await
    }

    /// Sends a body of any size, once.
    pub(super) async fn upload(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Body,
        limit: Duration,
    ) -> Result<Reply, ApiError> {
        let request = self.http.request(method, path, headers, body)?;
        send_once(&self.http, request, limit).await
    }

    /// Makes the call in version 2 of the API, or in version 1 if the server does not support version 2.
    ///
    /// A 404 can also mean that the template or sandbox does not exist. Then the call in the other version returns the
    /// same.
    pub(super) async fn call_versions(&self, v2: Call, v1: impl FnOnce() -> Call) -> Result<Reply, ApiError> {
        if !self.v1_only.load(Ordering::Relaxed) {
            match self.call(v2).await {
                Err(ApiError::NotFound { .. } | ApiError::Server { code: 405, .. }) => {}
                other => return other,
            }
        }
        let reply = self.call(v1()).await?;
        self.v1_only.store(true, Ordering::Relaxed);
        Ok(reply)
    }

    /// Returns a client for one port of a sandbox, with the headers that an edge routes by.
    pub(super) fn edge(&self, domain: &str, sandbox: &SandboxId, port: u16) -> Result<Http, UrlError> {
        let mut http = match &self.edge {
            Some(edge) => edge.clone(),
            None => {
                let url = edge_url(domain, sandbox, port)?;
                Http::new(self.connector.clone(), url, common_headers(), self.http.timeout())
            }
        };
        http.route_to(sandbox, port);
        Ok(http)
    }
}

fn common_headers() -> HeaderMap {
    HeaderMap::from_iter([(header::USER_AGENT, HeaderValue::from_static(USER_AGENT))])
}
