//! The sandbox of an execution, as a lease. It must be healthy and not too old.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use isopod_control::lifecycle::{CreateRefusal, GuestConnection, NewSandbox, SESSION_KEY, Sandbox};
use isopod_files::workspace::EXECUTION_KEY;
use isopod_lease::{EndLease, Holder, LeaseEnded, LeaseName, Leased, Opened};
use isopod_store::clock::Timestamp;
use isopod_store::{ExecutionClaim, NetworkSettings};
use isopod_wire::SandboxId;

use super::errors::ToolError;
use super::tool::Toolkit;

/// A guest that does not report its health within this time is unhealthy.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// How many new sandboxes are tried if they do not reply.
const MAX_TRIES: usize = 2;

/// An execution that uses or ends its sandbox.
pub(super) struct Lessee {
    pub(super) toolkit: Toolkit,
    /// How long the sandbox must run from now on.
    pub(super) duration: Duration,
    /// Requires a new sandbox, even if there is one.
    pub(super) replace: bool,
}

/// A sandbox that replied a moment ago.
pub(super) struct Healthy {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) inside: GuestConnection,
}

impl Holder for Lessee {
    /// The requirements of the sandbox.
    type Record = NewSandbox;
    type Sandbox = Healthy;
    type Error = ToolError;

    fn name(&self) -> LeaseName {
        LeaseName { team: self.toolkit.team.clone(), key: self.toolkit.session_key() }
    }

    fn id(healthy: &Healthy) -> &SandboxId {
        healthy.sandbox.id()
    }

    fn ended(&self, why: LeaseEnded) -> ToolError {
        match why {
            LeaseEnded::Meanwhile => ToolError::Stopped,
            LeaseEnded::Aborted => ToolError::Create(CreateRefusal::Aborted),
        }
    }

    async fn open(&self) -> Result<Opened<NewSandbox, Healthy>, ToolError> {
        let wanted = self.wanted().await?;
        let live = self.find_usable(&wanted).await?;
        Ok(Opened { record: wanted, live, recorded: None, restarts: 0 })
    }

    async fn create(&self, wanted: &NewSandbox) -> Result<Healthy, ToolError> {
        for _ in 0..MAX_TRIES {
            let sandbox = self.toolkit.app.fleet.create(wanted.clone()).await?;
            if let Some(inside) = self.ask(&sandbox).await {
                return Ok(Healthy { sandbox, inside });
            }
            // It is useless, so ignore a failure.
            let _ = sandbox.kill().await;
        }
        Err(ToolError::Stopped)
    }

    async fn record(&self, _: &NewSandbox, leased: &Leased<Healthy>) -> Result<(), ToolError> {
        self.check_claim(&leased.sandbox.sandbox).await
    }

    async fn discard(&self, healthy: Healthy) {
        // The sandbox's controller retries until it is gone.
        let _ = healthy.sandbox.kill().await;
    }
}

impl EndLease for Lessee {
    /// Whether there was a sandbox.
    type Ended = bool;

    async fn end(&self) -> Result<bool, ToolError> {
        let Some(live) = self.toolkit.live().await? else { return Ok(false) };
        live.kill().await?;
        Ok(true)
    }
}

impl Lessee {
    /// The sandbox of the execution, if it can be used as it is. Calls do not wait for each other here.
    pub(super) async fn find_current(&self) -> Result<Option<Healthy>, ToolError> {
        if self.replace || !self.toolkit.live().await?.is_some_and(|live| self.is_young(&live)) {
            return Ok(None);
        }
        let found = self.find_healthy(&self.wanted().await?).await?;
        if let Some(healthy) = &found {
            self.check_claim(&healthy.sandbox).await?;
        }
        Ok(found)
    }

    async fn find_usable(&self, wanted: &NewSandbox) -> Result<Option<Healthy>, ToolError> {
        let Toolkit { app, execution, .. } = &self.toolkit;
        let Some(live) = self.toolkit.live().await? else {
            let had_one = app.fleet.store.toolkit_sandbox(execution).await?.is_some();
            return if had_one && !self.replace { self.lost() } else { Ok(None) };
        };
        // Replace an old one now, before the platform ends it in the middle of something.
        if self.replace || !self.is_young(&live) {
            live.kill().await?;
            return Ok(None);
        }
        if let Some(healthy) = self.find_healthy(wanted).await? {
            return Ok(Some(healthy));
        }
        let lost = self.lost()?;
        let _ = live.kill().await;
        Ok(lost)
    }

    /// Extends the sandbox's time, and returns it if it replies.
    async fn find_healthy(&self, wanted: &NewSandbox) -> Result<Option<Healthy>, ToolError> {
        let Some(live) = self.toolkit.live().await? else { return Ok(None) };
        wanted.check_session(&live.view().row)?;
        let connected = self.toolkit.app.fleet.connect(&wanted.team, live.id(), wanted.timeout).await;
        let Some(sandbox) = connected.map_err(CreateRefusal::Session)? else { return Ok(None) };
        let inside = self.ask(&sandbox).await;
        Ok(inside.map(|inside| Healthy { sandbox, inside }))
    }

    fn is_young(&self, live: &Sandbox) -> bool {
        live.view().row.created_at.until(Timestamp::now()) < self.toolkit.config.max_lifetime()
    }

    /// The execution may have been removed, and claimed by another team, while its sandbox was searched or created.
    async fn check_claim(&self, sandbox: &Sandbox) -> Result<(), ToolError> {
        let Toolkit { app, team, execution, .. } = &self.toolkit;
        if app.fleet.store.claim_execution(team, execution).await? != ExecutionClaim::Ours {
            sandbox.kill().await?;
            return Err(ToolError::Gone);
        }
        Ok(())
    }

    /// The configuration says whether a missing or unusable sandbox is replaced.
    fn lost(&self) -> Result<Option<Healthy>, ToolError> {
        if self.toolkit.config.auto_reinitialize { Ok(None) } else { Err(ToolError::Gone) }
    }

    async fn ask(&self, sandbox: &Sandbox) -> Option<GuestConnection> {
        let inside = sandbox.view().guest_connection(&self.toolkit.app.fleet.node)?;
        let answer = tokio::time::timeout(HEALTH_TIMEOUT, inside.guest.health()).await;
        matches!(answer, Ok(Ok(()))).then_some(inside)
    }

    async fn wanted(&self) -> Result<NewSandbox, ToolError> {
        let Toolkit { app, team, execution, config } = &self.toolkit;
        let key = self.toolkit.session_key();
        let metadata = [(SESSION_KEY.to_owned(), key.clone()), (EXECUTION_KEY.to_owned(), execution.to_string())];
        let mount = self.toolkit.workspace().map(|workspace| workspace.execution_mount(execution.as_str()));
        Ok(NewSandbox {
            team: team.clone(),
            template: app.catalogue.usable(team, &config.template).await?,
            timeout: self.duration.min(app.fleet.max_lifetime()),
            auto_pause: false,
            auto_pause_memory: true,
            auto_resume: false,
            secure: true,
            allow_internet: None,
            network: NetworkSettings::default(),
            metadata: BTreeMap::from(metadata),
            env: BTreeMap::new(),
            session_key: Some(key),
            idempotency_key: None,
            mounts: mount.into_iter().collect(),
            volume_mounts: Vec::new(),
        })
    }
}
