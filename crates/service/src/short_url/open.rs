//! Finds where a short URL leads.

use std::net::IpAddr;
use std::time::Instant;

use isopod_store::clock::Timestamp;
use isopod_wire::SandboxId;

use crate::{Service, ServiceError};

/// Where a short URL leads.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) sandbox: SandboxId,
    pub(crate) port: u16,
    /// The host name of the port, if it isn't below this server's domain.
    pub(crate) host: Option<String>,
    pub(crate) path: String,
}

impl Service {
    /// Finds a short URL for a visitor at this address, unless too many unknown ones were opened from there.
    pub(crate) async fn open_short_url(&self, from: IpAddr, id: &str) -> Result<Destination, ServiceError> {
        self.guesses.take(from, Instant::now()).map_err(ServiceError::TooManyGuesses)?;
        let found = self.destination_of(id).await;
        if !matches!(found, Err(ServiceError::NotFound { .. } | ServiceError::Gone(_))) {
            self.guesses.give_back(from);
        }
        found
    }

    async fn destination_of(&self, id: &str) -> Result<Destination, ServiceError> {
        let url = match is_short_id(id) {
            true => self.store.find_short_url(id).await?,
            false => None,
        };
        let url = url.ok_or_else(|| ServiceError::not_found("link", id))?;
        if !url.is_live(Timestamp::now()) {
            return Err(ServiceError::Gone("this link has expired"));
        }
        let row = self.store.find_service_sandbox(url.sandbox.as_str()).await?;
        let row = row.filter(|row| row.team == url.team).ok_or(ENDED)?;
        if row.server != self.server {
            return Err(self.store.on_other_server(&row.server).await.into());
        }
        if self.settled(row).await?.destroyed_at.is_some() {
            return Err(ENDED);
        }
        let host = self.backend.host(&url.sandbox, url.port).await?;
        Ok(Destination { sandbox: url.sandbox, port: url.port, host, path: url.path })
    }
}

const ENDED: ServiceError = ServiceError::Gone("the sandbox behind this link has ended");

fn is_short_id(text: &str) -> bool {
    text.len() == 7 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
