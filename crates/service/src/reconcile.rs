//! Reconciliation: compares the rows of this server with its sandboxes at regular intervals, and makes them agree in both
//! directions. Removes sandboxes that are older than they may be, and old history.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use isopod_store::clock::Timestamp;
use isopod_store::service::{AuditEntry, ServiceSandbox, Status};
use isopod_wire::SandboxId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backend::{BackendSandbox, CREATE_LABEL, ErrorKind};
use super::{SERVER_LABEL, Service, ServiceError};

/// Who did it, in the audit.
const ACTOR: &str = "isopod";

/// Looks at once, then at its pace until the server stops.
pub async fn run_reconciler(service: Arc<Service>, stop: CancellationToken) {
    let mut pace = tokio::time::interval(service.config.check_every);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reaped = None::<Instant>;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        let looked = tokio::select! {
            () = stop.cancelled() => return,
            looked = service.look() => looked,
        };
        if let Err(error) = looked {
            tracing::warn!(error = isopod_wire::error_chain(&error), "the service's sandboxes were not all looked at");
        }
        if reaped.is_none_or(|at| at.elapsed() >= service.config.reap_every) {
            reaped = Some(Instant::now());
            if let Err(error) = service.reap().await {
                tracing::warn!(error = isopod_wire::error_chain(&error), "old sandboxes were not all removed");
            }
        }
    }
}

impl Service {
    /// One look at everything.
    pub(crate) async fn look(self: &Arc<Self>) -> Result<(), ServiceError> {
        // The backend first: whatever it has then has a row by the time that rows are read.
        let label = BTreeMap::from([(SERVER_LABEL.to_owned(), self.server.clone())]);
        let listed = self.backend.list(&label).await?;
        let found: HashMap<&SandboxId, &BackendSandbox> = listed.iter().map(|sandbox| (&sandbox.id, sandbox)).collect();
        let rows = self.store.live_service_sandboxes(&self.server).await?;
        self.remove_orphans(&listed, &rows).await;
        for row in rows {
            self.look_at(row, &found).await?;
        }
        Ok(())
    }

    async fn look_at(
        self: &Arc<Self>,
        row: ServiceSandbox,
        found: &HashMap<&SandboxId, &BackendSandbox>,
    ) -> Result<(), ServiceError> {
        let Some(sandbox) = row.sandbox.clone() else { return self.look_at_creating(row).await };
        if let Some(found) = found.get(&sandbox) {
            return self.seen(row, found.state).await.map(drop);
        }
        // Not in the list, which may be a moment old, or made by another way in: asked for by name.
        match self.backend.status(&sandbox).await {
            Ok(found) => self.seen(row, found.state).await.map(drop),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let ended = self.vanished(row).await?;
                self.say(&ended, "sandbox.ended").await;
                Ok(())
            }
            Err(error) => {
                self.metrics.failure(error.kind().text());
                Ok(())
            }
        }
    }

    /// A create of an earlier process, or one past its deadline, will never be finished.
    async fn look_at_creating(&self, row: ServiceSandbox) -> Result<(), ServiceError> {
        let is_old = row.created_at.plus(self.config.create_deadline) <= Timestamp::now();
        if !is_old && row.created_at >= self.started {
            return Ok(());
        }
        self.remove_labelled(&row.create_key).await;
        let reason = if is_old { "create_deadline" } else { "create_interrupted" };
        let row = ServiceSandbox { idempotency: None, ..row };
        let ended = self.ended(row, Status::Error, reason.to_owned()).await?;
        self.say(&ended, "sandbox.ended").await;
        Ok(())
    }

    /// Ends sandboxes of ours that no live row speaks of: their create's answer was lost, or their end failed half-way.
    async fn remove_orphans(&self, listed: &[BackendSandbox], rows: &[ServiceSandbox]) {
        let known: HashSet<&SandboxId> = rows.iter().filter_map(|row| row.sandbox.as_ref()).collect();
        let making: HashSet<&str> =
            rows.iter().filter(|row| row.sandbox.is_none()).map(|row| row.create_key.as_str()).collect();
        for sandbox in listed {
            let is_made = sandbox.metadata.get(CREATE_LABEL).is_some_and(|key| making.contains(key.as_str()));
            if !is_made && !known.contains(&sandbox.id) {
                tracing::warn!(sandbox = %sandbox.id, "a sandbox without a row is removed");
                self.metrics.ended("orphan");
                self.remove(Some(&sandbox.id)).await;
            }
        }
    }

    /// Removes what is older than it may be, and history that is old.
    pub(crate) async fn reap(self: &Arc<Self>) -> Result<(), ServiceError> {
        let now = Timestamp::now();
        let oldest = now.minus(self.config.stale_after);
        for row in self.store.live_service_sandboxes(&self.server).await? {
            if row.created_at < oldest {
                let ended = self.end(row, "stale").await?;
                self.say(&ended, "sandbox.reaped").await;
            }
        }
        self.store.prune_service(now.minus(self.config.keep_commands)).await?;
        Ok(())
    }

    /// A line in the audit for what nobody asked for.
    async fn say(&self, row: &ServiceSandbox, action: &str) {
        let entry = AuditEntry {
            at: Timestamp::now(),
            team: row.team.clone(),
            actor: ACTOR.to_owned(),
            action: action.to_owned(),
            sandbox: Some(row.id.clone()),
            agent: row.agent.clone(),
            task: row.task.clone(),
            source: None,
            status: if row.status == Status::Error { 500 } else { 200 },
            code: row.reason.clone(),
            micros: 0,
        };
        if self.recorder.audit(entry).await.is_err() {
            tracing::warn!(sandbox = row.id, "an ending is not in the audit yet");
        }
    }
}
