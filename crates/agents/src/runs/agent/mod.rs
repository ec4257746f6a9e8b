//! Agents behind URLs: one POST invokes a node, and each agent service is told when a run has ended.

mod call;
mod message;

use std::time::Duration;

use http::{Method, StatusCode};
use isopod_outbound::Policy;
use serde_json::{Value, json};

pub(crate) use call::AgentError;
use call::Caller;
pub(crate) use message::{AgentReply, Delegation, Invocation};

use isopod_outbound::Trust;
use isopod_store::{AgentService, RunId};

/// Calls agents.
#[derive(Debug)]
pub(crate) struct Agents {
    caller: Caller,
    /// The URL of the server's agent service. It may be on an internal address.
    service: Option<String>,
    policy: Policy,
}

const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// A model thinks for a while.
const PLAN_TIMEOUT: Duration = Duration::from_secs(120);

impl Agents {
    pub(crate) fn new(trust: Trust, service: Option<String>, policy: Policy) -> Self {
        let service = service.map(|url| url.trim_end_matches('/').to_owned());
        Self { caller: Caller::new(trust), service, policy }
    }

    /// Whether an agent without a URL can be invoked.
    pub(crate) fn has_service(&self) -> bool {
        self.service.is_some()
    }

    /// The service of an agent with this URL.
    pub(crate) fn service_of(&self, url: Option<&str>) -> AgentService {
        match url.map(|url| url.trim_end_matches('/')) {
            Some(url) if self.service.as_deref() != Some(url) => AgentService::At(url.to_owned()),
            _ => AgentService::Configured,
        }
    }

    /// Invokes an agent and reads its reply. There is no timeout: drop the future to stop waiting.
    pub(crate) async fn invoke(&self, url: Option<&str>, invocation: &Invocation) -> Result<AgentReply, AgentError> {
        let base = url.or(self.service.as_deref()).ok_or(AgentError::NoService)?.trim_end_matches('/');
        let body = serde_json::to_vec(invocation).expect("an invocation serialises to JSON");
        let policy = if self.service.as_deref() == Some(base) { &Policy::open() } else { &self.policy };
        let (status, body) = self.caller.call(Method::POST, &format!("{base}/invoke"), body, policy).await?;
        if !status.is_success() {
            return Err(AgentError::Status { status, body: beginning(&body) });
        }
        serde_json::from_slice(&body).map_err(|source| AgentError::InvalidReply { source, body: beginning(&body) })
    }

    /// Asks the configured service for a workflow.
    pub(crate) async fn plan(&self, text: &str) -> Result<Value, AgentError> {
        let service = self.service.as_deref().ok_or(AgentError::NoPlanner)?;
        let body = json!({ "text": text }).to_string().into_bytes();
        let (url, open) = (format!("{service}/plan"), Policy::open());
        let call = self.caller.call(Method::POST, &url, body, &open);
        let (status, body) =
            tokio::time::timeout(PLAN_TIMEOUT, call).await.map_err(|_| AgentError::Timeout(PLAN_TIMEOUT))??;
        if !status.is_success() {
            return Err(AgentError::Status { status, body: beginning(&body) });
        }
        serde_json::from_slice(&body).map_err(|source| AgentError::InvalidReply { source, body: beginning(&body) })
    }

    /// Tells a service that a run has ended. It is not an error if the service doesn't know the run, or if it has nothing
    /// to clean up and so no such route, or if the policy forbids its address, so that it was never called.
    pub(crate) async fn clean_up(&self, service: &AgentService, run: &RunId) -> Result<(), AgentError> {
        match self.tell_ended(service, run).await {
            Err(AgentError::Request(error)) if error.is_internal() => Ok(()),
            told => told,
        }
    }

    async fn tell_ended(&self, service: &AgentService, run: &RunId) -> Result<(), AgentError> {
        let (base, policy) = match (service, self.service.as_deref()) {
            (AgentService::At(url), _) => (url.as_str(), &self.policy),
            (AgentService::Configured, Some(url)) => (url, &Policy::open()),
            (AgentService::Configured, None) => return Ok(()),
        };
        let url = format!("{base}/runtime/{run}/cleanup");
        let call = self.caller.call(Method::DELETE, &url, Vec::new(), policy);
        let (status, body) =
            tokio::time::timeout(CLEANUP_TIMEOUT, call).await.map_err(|_| AgentError::Timeout(CLEANUP_TIMEOUT))??;
        if status.is_success() || HAS_NOTHING.contains(&status) {
            return Ok(());
        }
        Err(AgentError::Status { status, body: beginning(&body) })
    }
}

/// How a service answers that doesn't know the run or the route.
const HAS_NOTHING: [StatusCode; 4] =
    [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::GONE, StatusCode::NOT_IMPLEMENTED];

/// Enough of a reply to recognise it.
fn beginning(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned()
}

/// The names in a list whose items are strings or objects with a name.
fn names(list: &[Value]) -> Vec<String> {
    let name = |item: &Value| match item {
        Value::String(text) => text.clone(),
        Value::Object(fields) => fields.get("name").and_then(Value::as_str).unwrap_or("unknown").to_owned(),
        other => other.to_string(),
    };
    list.iter().map(name).collect()
}
