//! Agents behind URLs: a node is invoked with one POST, and an agent service is told when a run has ended.

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

/// Speaks with agents.
#[derive(Debug)]
pub(crate) struct Agents {
    caller: Caller,
    /// The agent service that the server was told of. It may be on an internal address.
    home: Option<String>,
    policy: Policy,
}

const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

impl Agents {
    pub(crate) fn new(trust: Trust, home: Option<String>, policy: Policy) -> Self {
        let home = home.map(|url| url.trim_end_matches('/').to_owned());
        Self { caller: Caller::new(trust), home, policy }
    }

    /// Whether an agent without a URL can be invoked.
    pub(crate) fn has_home(&self) -> bool {
        self.home.is_some()
    }

    /// Invokes an agent and reads what it answers. The caller says how long that may take, by dropping this.
    pub(crate) async fn invoke(&self, url: Option<&str>, invocation: &Invocation) -> Result<AgentReply, AgentError> {
        let base = url.or(self.home.as_deref()).ok_or(AgentError::NoHome)?.trim_end_matches('/');
        let body = serde_json::to_vec(invocation).expect("an invocation has only string keys");
        let policy = if self.home.as_deref() == Some(base) { &Policy::open() } else { &self.policy };
        let (status, body) = self.caller.call(Method::POST, &format!("{base}/invoke"), body, policy).await?;
        if !status.is_success() {
            return Err(AgentError::Status { status, body: beginning(&body) });
        }
        serde_json::from_slice(&body).map_err(|source| AgentError::Garbage { source, body: beginning(&body) })
    }

    /// Tells the agent service that a run is over. Nothing to do without one; a run that it does not know is fine.
    pub(crate) async fn clean_up(&self, run: &RunId) -> Result<(), AgentError> {
        let Some(home) = &self.home else { return Ok(()) };
        let (url, open) = (format!("{home}/runtime/{run}/cleanup"), Policy::open());
        let call = self.caller.call(Method::DELETE, &url, Vec::new(), &open);
        let (status, body) =
            tokio::time::timeout(CLEANUP_TIMEOUT, call).await.map_err(|_| AgentError::Timeout(CLEANUP_TIMEOUT))??;
        if status.is_success() || status == StatusCode::NOT_FOUND {
            return Ok(());
        }
        Err(AgentError::Status { status, body: beginning(&body) })
    }
}

/// Enough of an answer to recognise it.
fn beginning(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned()
}

/// The texts of a list whose items may be texts or objects with a name.
fn names(list: &[Value]) -> Vec<String> {
    let name = |item: &Value| match item {
        Value::String(text) => text.clone(),
        Value::Object(fields) => fields.get("name").and_then(Value::as_str).unwrap_or("unknown").to_owned(),
        other => other.to_string(),
    };
    list.iter().map(name).collect()
}
