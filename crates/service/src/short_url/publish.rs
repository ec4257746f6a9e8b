//! Gives the preview of a sandbox a short URL, and lets the sandbox live as long as the URL.

use std::time::{Duration, SystemTime};

use isopod_store::clock::Timestamp;
use isopod_store::secrets::new_short_id;
use isopod_store::service::{ServiceSandbox, ShortUrl, ShortUrlClaim, Status};
use isopod_wire::{GUEST_PORT, INTERPRETER_PORT, SandboxId};

use crate::access::{Access, Operation};
use crate::backend::{BackendSandbox, BackendState};
use crate::pause::live_sandbox;
use crate::{Service, ServiceError};
use isopod_api::ClientNetwork;

/// A checked request.
#[derive(Clone, Debug)]
pub(crate) struct NewShortUrl {
    /// The service's id or the backend's.
    pub(crate) sandbox: String,
    pub(crate) port: PublishedPort,
    /// The path with its query, from the first slash.
    pub(crate) path: String,
    pub(crate) duration: Duration,
    /// Who asks, for the limit of an address.
    pub(crate) from: ClientNetwork,
}

/// How a request names the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublishedPort {
    Number(u16),
    /// By the host of a preview's URL.
    Host(String),
}

/// Ids are random. With 2^28 of them, a few attempts always find a free one.
const ID_ATTEMPTS: u32 = 8;

impl Service {
    pub(crate) async fn publish(&self, access: &Access, wanted: NewShortUrl) -> Result<ShortUrl, ServiceError> {
        let row = self.find(access, Operation::Write, &wanted.sandbox).await?;
        let sandbox = live_sandbox(&row)?;
        let port = checked_port(self.port_of(&sandbox, &wanted.port).await?)?;
        let found = match self.backend.status(&sandbox).await {
            Ok(found) if found.state == BackendState::Running => found,
            Ok(_) => return Err(ServiceError::NotRunning(Status::Paused)),
            Err(error) => return Err(self.explain(&row, error).await),
        };
        let duration = wanted.duration.min(self.longest_life(&row, &found));
        let created_at = Timestamp::now();
        let url = ShortUrl {
            id: new_short_id(),
            team: row.team.clone(),
            sandbox,
            agent: row.agent.clone(),
            port,
            path: wanted.path,
            created_from: Some(wanted.from.to_string()),
            created_at,
            expires_at: created_at.plus(duration),
            removed_at: None,
        };
        let url = self.record_short_url(url).await?;
        if let Err(error) = self.extend(&found, duration).await {
            self.store.discard_short_url(&url.id).await?;
            return Err(self.explain(&row, error).await);
        }
        Ok(url)
    }

    /// The port of this very sandbox. A URL that names anything else is refused.
    async fn port_of(&self, sandbox: &SandboxId, port: &PublishedPort) -> Result<u16, ServiceError> {
        let host = match port {
            PublishedPort::Number(port) => return Ok(*port),
            PublishedPort::Host(host) => host,
        };
        let found = match self.previews.parse(host) {
            Some((named, port)) => (named == *sandbox).then_some(port),
            None => self.port_at_backend(sandbox, host).await?,
        };
        found.ok_or_else(|| ServiceError::invalid(format!("url must be a preview URL of sandbox {sandbox}")))
    }

    /// For sandboxes of another server, which have names below its domain.
    async fn port_at_backend(&self, sandbox: &SandboxId, host: &str) -> Result<Option<u16>, ServiceError> {
        let Some(port) = host.split('-').next().and_then(|port| port.parse().ok()) else { return Ok(None) };
        let known = self.backend.host(sandbox, port).await?;
        Ok(known.filter(|known| known.eq_ignore_ascii_case(host)).map(|_| port))
    }

    /// How long the sandbox can live from now on, whatever its timeout.
    fn longest_life(&self, row: &ServiceSandbox, found: &BackendSandbox) -> Duration {
        let until_stale = Timestamp::now().until(row.created_at.plus(self.config.stale_after));
        let last = found.started_at + self.fleet.max_lifetime();
        until_stale.min(last.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Records it under a free id.
    async fn record_short_url(&self, mut url: ShortUrl) -> Result<ShortUrl, ServiceError> {
        for _ in 0..ID_ATTEMPTS {
            match self.store.insert_short_url(&url, self.config.short_urls).await? {
                ShortUrlClaim::Recorded => return Ok(url),
                ShortUrlClaim::Exceeded(limit) => return Err(limit.into()),
                ShortUrlClaim::TooManyFromAddress { limit, until } => {
                    let wait = url.created_at.until(until);
                    return Err(ServiceError::TooManyShortUrls { limit: limit.get(), wait });
                }
                ShortUrlClaim::IdTaken => url.id = new_short_id(),
            }
        }
        Err(ServiceError::conflict("no_free_id", "could not find a free short URL; try again"))
    }

    /// Lets the sandbox live at least this long. It never ends earlier than before, because another URL may need it.
    async fn extend(&self, found: &BackendSandbox, duration: Duration) -> Result<(), crate::backend::BackendError> {
        if found.ends_at >= SystemTime::now() + duration {
            return Ok(());
        }
        self.backend.set_timeout(&found.id, duration).await
    }
}

fn checked_port(port: u16) -> Result<u16, ServiceError> {
    match port {
        0 => Err(ServiceError::invalid("port must be 1 to 65535")),
        GUEST_PORT | INTERPRETER_PORT => Err(ServiceError::invalid("this port is for the SDKs and can't be published")),
        port => Ok(port),
    }
}
