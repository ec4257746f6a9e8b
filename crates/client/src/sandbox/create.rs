//! Creates sandboxes, and connects to existing ones.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderValue, Method};
use isopod_wire::SandboxId;
use serde::Serialize;
use serde_json::json;

use super::call::Call;
use super::handle::Made;
use super::{ApiError, Client, Sandbox, SandboxDetail};

/// The default lifetime of a sandbox.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The sandbox to create. Use [`NewSandbox::new`], or set the fields directly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSandbox {
    /// The template's id or name.
    pub template: String,
    /// Its lifetime. The default is five minutes.
    pub timeout: Option<Duration>,
    /// Whether to pause it at its timeout instead of killing it.
    pub auto_pause: bool,
    /// Whether traffic resumes it when it is paused.
    pub auto_resume: bool,
    /// Whether it can reach the internet. The default is the server's.
    pub allow_internet_access: Option<bool>,
    /// Its network rules.
    pub network: Option<NetworkConfig>,
    /// Metadata to find it by.
    pub metadata: BTreeMap<String, String>,
    /// Environment variables for all its processes.
    pub envs: BTreeMap<String, String>,
    /// Identifies this request: if it is sent again with the same key, the server returns the same sandbox. Up to 255
    /// characters of `a-z`, `0-9` and `-`. Only requests with a key are retried if the server is busy.
    pub idempotency_key: Option<String>,
    /// Whether to start from a snapshot's files alone, without its processes. Only Isopod's servers support this.
    pub files_only: bool,
}

/// Network rules of a sandbox. Allow wins over deny.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfig {
    /// If false, only requests with the traffic token reach its ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// Addresses, networks or domains that it can reach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_out: Vec<String>,
    /// Addresses or networks that it cannot reach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_out: Vec<String>,
    /// The Host header that its services see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
}

impl NewSandbox {
    /// Creates a sandbox from this template.
    pub fn new(template: impl Into<String>) -> Self {
        Self { template: template.into(), ..Self::default() }
    }

    /// Sets its lifetime.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Adds metadata to find it by.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Sets an environment variable for all its processes.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.envs.insert(name.into(), value.into());
        self
    }

    /// Sets the idempotency key of this request.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    fn body(&self, secure: Option<bool>) -> Body<'_> {
        Body {
            template_id: &self.template,
            timeout: whole_seconds(self.timeout.unwrap_or(DEFAULT_TIMEOUT)),
            secure,
            auto_pause: self.auto_pause,
            auto_resume: self.auto_resume.then_some(AutoResume { enabled: true }),
            allow_internet_access: self.allow_internet_access,
            network: self.network.as_ref(),
            metadata: &self.metadata,
            env_vars: &self.envs,
            memory: self.files_only.then_some(false),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(rename = "templateID")]
    template_id: &'a str,
    timeout: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    secure: Option<bool>,
    auto_pause: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    allow_internet_access: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<&'a NetworkConfig>,
    metadata: &'a BTreeMap<String, String>,
    env_vars: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<bool>,
}

#[derive(Serialize)]
struct AutoResume {
    enabled: bool,
}

impl Client {
    /// Creates a sandbox. It is running when this returns.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if there is no such template, [`ApiError::RateLimited`] if the team has too many,
    /// [`ApiError::Unavailable`] if the server is full.
    pub async fn create(&self, new: NewSandbox) -> Result<Sandbox, ApiError> {
        let key = new.idempotency_key.as_ref().map(HeaderValue::try_from).transpose();
        let key = key.map_err(|_| refused("the idempotency key has invalid characters"))?;
        let call = |path: &str, secure| Call::new(Method::POST, path).json(&new.body(secure)).once(key.as_ref());
        // In version 1, sandboxes are open to everybody by default.
        let reply = self.call_versions(call("/v2/sandboxes", None), || call("/sandboxes", Some(true))).await?;
        Sandbox::from_made(self, reply.parse()?)
    }

    /// Connects to a sandbox. Resumes a paused one, and extends the lifetime of a running one to at least `timeout`
    /// from now.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    pub async fn connect(&self, sandbox: &SandboxId, timeout: Option<Duration>) -> Result<Sandbox, ApiError> {
        let body = json!({ "timeout": whole_seconds(timeout.unwrap_or(DEFAULT_TIMEOUT)) });
        let call = |path: String| Call::new(Method::POST, path).json(&body);
        let v2 = call(format!("/v2/sandboxes/{sandbox}/connect"));
        let reply = self.call_versions(v2, || call(format!("/sandboxes/{sandbox}/connect"))).await?;
        Sandbox::from_made(self, reply.parse()?)
    }

    /// Returns a handle to a sandbox without changing it: a paused one stays paused, and its timeout stays.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    pub async fn attach(&self, sandbox: &SandboxId) -> Result<(Sandbox, SandboxDetail), ApiError> {
        let reply = self.call(Call::new(Method::GET, format!("/sandboxes/{sandbox}"))).await?;
        let made: Made = reply.parse()?;
        Ok((Sandbox::from_made(self, made)?, reply.parse()?))
    }

    /// Resumes a paused sandbox. An alias of [`Self::connect`].
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if it does not exist.
    pub async fn resume(&self, sandbox: &SandboxId, timeout: Option<Duration>) -> Result<Sandbox, ApiError> {
        self.connect(sandbox, timeout).await
    }
}

/// Creates the error for a request that is refused without a server.
pub(super) fn refused(message: &str) -> ApiError {
    ApiError::Server { code: 400, error_code: None, message: message.to_owned() }
}

/// The API counts in seconds. Rounds up.
pub(super) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_look_as_servers_expect() {
        let new = NewSandbox {
            allow_internet_access: Some(false),
            auto_resume: true,
            ..NewSandbox::new("base").timeout(Duration::from_millis(1500)).metadata("a", "b").env("X", "1")
        };
        assert_eq!(
            serde_json::to_value(new.body(None)).unwrap(),
            json!({
                "templateID": "base", "timeout": 2, "autoPause": false, "autoResume": {"enabled": true},
                "allow_internet_access": false, "metadata": {"a": "b"}, "envVars": {"X": "1"},
            })
        );
        assert_eq!(serde_json::to_value(new.body(Some(true))).unwrap()["secure"], true);
        let files = NewSandbox { files_only: true, ..NewSandbox::new("kept:default") };
        assert_eq!(serde_json::to_value(files.body(None)).unwrap()["memory"], false);
    }
}
