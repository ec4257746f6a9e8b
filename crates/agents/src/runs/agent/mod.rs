//! Agents behind URLs: one POST invokes a node, and an agent service is notified when a run has ended.

mod call;
mod message;

use std::time::Duration;

use http::{Method, StatusCode};
use isopod_outbound::Policy;
use serde_json::Value;

pub(crate) use call::AgentError;
use call::Caller;
pub(crate) use message::{AgentReply, Delegation, Invocation};

use isopod_outbound::Trust;
use isopod_store::RunId;

/// Calls agents.
#[derive(Debug)]
pub(crate) struct Agents {
    caller: Caller,
    /// The URL of the server's agent service. It may be on an internal address.
    service: Option<String>,
    policy: Policy,
}

const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

impl Agents {
    pub(crate) fn new(trust: Trust, service: Option<String>, policy: Policy) -> Self {
        let service = service.map(|url| url.trim_end_matches('/').to_owned());
        Self { caller: Caller::new(trust), service, policy }
    }

    /// Whether an agent without a URL can be invoked.
    pub(crate) fn has_service(&self) -> bool {
        self.service.is_some()
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

    /// Notifies the agent service, if there is one, that a run has ended. It is not an error if the service does not
    /// know the run.
    pub(crate) async fn clean_up(&self, run: &RunId) -> Result<(), AgentError> {
        let Some(service) = &self.service else { return Ok(()) };
        let (url, open) = (format!("{service}/runtime/{run}/cleanup"), Policy::open());
        let call = self.caller.call(Method::DELETE, &url, Vec::new(), &open);
        let (status, body) =
            tokio::time::timeout(CLEANUP_TIMEOUT, call).await.map_err(|_| AgentError::Timeout(CLEANUP_TIMEOUT))??;
        if status.is_success() || status == StatusCode::NOT_FOUND {
            return Ok(());
        }
        Err(AgentError::Status { status, body: beginning(&body) })
    }
}

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
