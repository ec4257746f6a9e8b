//! Making sandboxes, and connecting to those that exist.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderValue, Method};
use isopod_wire::SandboxId;
use serde::Serialize;
use serde_json::json;

use super::call::Call;
use super::handle::Made;
use super::{ApiError, Client, Sandbox, SandboxDetail};

/// How long a sandbox lives where nothing is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// What to make. [`NewSandbox::new`] makes one; the fields may be set directly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSandbox {
    /// The template's id or name.
    pub template: String,
    /// How long it lives; none means five minutes.
    pub timeout: Option<Duration>,
    /// Pause it at the end of that time instead of killing it.
    pub auto_pause: bool,
    /// Let traffic wake it when it is paused.
    pub auto_resume: bool,
    /// Whether it may reach the internet; none leaves that to the server.
    pub allow_internet_access: Option<bool>,
    /// Whom it may talk to, and who may talk to it.
    pub network: Option<NetworkConfig>,
    /// Words to find it by.
    pub metadata: BTreeMap<String, String>,
    /// Variables for every process in it.
    pub envs: BTreeMap<String, String>,
    /// Names this very create: sent again with the same key, the server gives the same sandbox. Up to 255 of `a-z`,
    /// `0-9` and `-`. Only creates with a key are repeated when the server is busy.
    pub idempotency_key: Option<String>,
}

/// Network rules of a sandbox. Allow wins over deny.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfig {
    /// Without it, only those who show the traffic token reach its ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// Addresses, networks or domains that it may reach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_out: Vec<String>,
    /// Addresses or networks that it may not reach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_out: Vec<String>,
    /// The Host that its servers see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
}

impl NewSandbox {
    /// A sandbox of this template.
    pub fn new(template: impl Into<String>) -> Self {
        Self { template: template.into(), ..Self::default() }
    }

    /// Sets how long it lives.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Adds a word to find it by.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Sets a variable for every process in it.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.envs.insert(name.into(), value.into());
        self
    }

    /// Names this very create.
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
}

#[derive(Serialize)]
struct AutoResume {
    enabled: bool,
}

impl Client {
    /// Makes a sandbox. It runs when this returns.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when there is no such template, [`ApiError::RateLimited`] when the team has too many,
    /// [`ApiError::Unavailable`] when the server has no room.
    pub async fn create(&self, new: NewSandbox) -> Result<Sandbox, ApiError> {
        let key = new.idempotency_key.as_ref().map(HeaderValue::try_from).transpose();
        let key = key.map_err(|_| refused("the idempotency key has characters that no key has"))?;
        let call = |path: &str, secure| Call::new(Method::POST, path).json(&new.body(secure)).once(key.as_ref());
        // The first version leaves sandboxes open to everyone unless told otherwise.
        let reply = self.call_versions(call("/v2/sandboxes", None), || call("/sandboxes", Some(true))).await?;
        Sandbox::from_made(self, reply.parse()?)
    }

    /// Connects to a sandbox. A paused one runs again; a running one lives at least that long from now.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when it does not exist.
    pub async fn connect(&self, sandbox: &SandboxId, timeout: Option<Duration>) -> Result<Sandbox, ApiError> {
        let body = json!({ "timeout": whole_seconds(timeout.unwrap_or(DEFAULT_TIMEOUT)) });
        let call = |path: String| Call::new(Method::POST, path).json(&body);
        let v2 = call(format!("/v2/sandboxes/{sandbox}/connect"));
        let reply = self.call_versions(v2, || call(format!("/sandboxes/{sandbox}/connect"))).await?;
        Sandbox::from_made(self, reply.parse()?)
    }

    /// Gets hold of a sandbox as it is: a paused one stays paused, and its time goes on as before.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when it does not exist.
    pub async fn attach(&self, sandbox: &SandboxId) -> Result<(Sandbox, SandboxDetail), ApiError> {
        let reply = self.call(Call::new(Method::GET, format!("/sandboxes/{sandbox}"))).await?;
        let made: Made = reply.parse()?;
        Ok((Sandbox::from_made(self, made)?, reply.parse()?))
    }

    /// Lets a paused sandbox run again: another word for [`Self::connect`].
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when it does not exist.
    pub async fn resume(&self, sandbox: &SandboxId, timeout: Option<Duration>) -> Result<Sandbox, ApiError> {
        self.connect(sandbox, timeout).await
    }
}

/// A refusal that needs no server.
fn refused(message: &str) -> ApiError {
    ApiError::Server { code: 400, error_code: None, message: message.to_owned() }
}

/// The API counts in seconds: rather a little longer than shorter.
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
    }
}
