//! What the service can be told.

use std::sync::Arc;
use std::time::Duration;

use isopod_store::service::Quotas;

use crate::backend::{Backend, RemoteBackend, ResilienceConfig};
use crate::policy::CommandPolicy;

/// How the service works. Everything has a default.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// A backend of the caller's own, instead of this server's node and of a remote one.
    pub backend: Option<Arc<dyn Backend>>,
    /// Where sandboxes come from instead of this server's own node.
    pub remote: Option<RemoteBackend>,
    /// How patient the service is with its backend.
    pub resilience: ResilienceConfig,
    /// What a team, an agent and a task may have.
    pub quotas: Quotas,
    /// Which commands may be run.
    pub policy: CommandPolicy,
    /// The template where a request names none.
    pub template: String,
    /// How long a sandbox lives where a request does not say.
    pub timeout: Duration,
    /// How long a command may run where a request does not say.
    pub command_timeout: Duration,
    /// How much of each output stream of a command is kept in the history, in bytes.
    pub keep_output: usize,
    /// How often every sandbox is looked at.
    pub check_every: Duration,
    /// How long a create may take before its row counts as left behind.
    pub create_deadline: Duration,
    /// Sandboxes older than this are removed.
    pub stale_after: Duration,
    /// How often those are looked for.
    pub reap_every: Duration,
    /// How long the history of commands is kept.
    pub keep_commands: Duration,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            backend: None,
            remote: None,
            resilience: ResilienceConfig::default(),
            quotas: Quotas::default(),
            policy: CommandPolicy::default(),
            template: "base".to_owned(),
            timeout: HOUR,
            command_timeout: Duration::from_secs(300),
            keep_output: 64 << 10,
            check_every: Duration::from_secs(30),
            create_deadline: Duration::from_secs(180),
            stale_after: HOUR * 24,
            reap_every: HOUR,
            keep_commands: HOUR * 24 * 30,
        }
    }
}
