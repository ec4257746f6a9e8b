//! The settings of the service.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use isopod_store::service::{Quotas, ShortUrlLimits};

use crate::backend::{Backend, RemoteBackend, ResilienceConfig};
use crate::policy::CommandPolicy;

/// The settings of the service. Everything has a default.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// A custom backend, used instead of this server's node and of a remote one.
    pub backend: Option<Arc<dyn Backend>>,
    /// A remote server, used instead of this server's own node.
    pub remote: Option<RemoteBackend>,
    /// Deadlines and retries of calls to the backend.
    pub resilience: ResilienceConfig,
    /// The quotas of a team, an agent and a task.
    pub quotas: Quotas,
    /// How many short URLs teams and addresses may have.
    pub short_urls: ShortUrlLimits,
    /// How many wrong short URLs one address may open per minute.
    pub guesses_per_minute: u32,
    /// Which commands may be run.
    pub policy: CommandPolicy,
    /// The default template.
    pub template: String,
    /// The default lifetime of a sandbox.
    pub timeout: Duration,
    /// The default timeout of a command.
    pub command_timeout: Duration,
    /// How long the app of a fragment may take until it listens.
    pub app_start_timeout: Duration,
    /// How long a clone may take.
    pub clone_timeout: Duration,
    /// The wait before the second try of a push. It doubles before the third.
    pub push_wait: Duration,
    /// How often a quiet stream of events sends a comment, which keeps proxies from closing it.
    pub heartbeat: Duration,
    /// How many bytes of each output stream of a command the history keeps.
    pub keep_output: usize,
    /// How often all sandboxes are reconciled.
    pub check_every: Duration,
    /// How long a create may take before its row counts as abandoned.
    pub create_deadline: Duration,
    /// Sandboxes older than this are removed.
    pub stale_after: Duration,
    /// How often those are searched.
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
            short_urls: ShortUrlLimits { live: 100, per_day: 100, per_address_per_day: NonZeroU32::new(10) },
            guesses_per_minute: 30,
            policy: CommandPolicy::default(),
            template: "base".to_owned(),
            timeout: HOUR,
            command_timeout: Duration::from_secs(300),
            app_start_timeout: Duration::from_secs(60),
            clone_timeout: Duration::from_secs(30),
            push_wait: Duration::from_secs(2),
            heartbeat: Duration::from_secs(30),
            keep_output: 64 << 10,
            check_every: Duration::from_secs(30),
            create_deadline: Duration::from_secs(180),
            stale_after: HOUR * 24,
            reap_every: HOUR,
            keep_commands: HOUR * 24 * 30,
        }
    }
}
