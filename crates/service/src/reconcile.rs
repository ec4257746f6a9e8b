//! Reconciliation: compares the rows of this server with its sandboxes at regular intervals, and makes them agree in
//! both directions. Removes sandboxes that are too old, and old history.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::service::{AuditEntry, ServiceSandbox, Status};
use isopod_wire::SandboxId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backend::{BackendSandbox, CREATE_LABEL, ErrorKind};
use super::{SERVER_LABEL, Service, ServiceError};

/// The actor in the audit log.
const ACTOR: &str = "isopod";

/// How long visitors learn that a short URL has expired. It must be more than a day, for the daily limit.
const KEEP_EXPIRED: Duration = Duration::from_secs(7 * 24 * 3600);

/// Reconciles at once, and then at its interval until the server stops.
pub async fn run_reconciler(service: Arc<Service>, stop: CancellationToken) {
    if let Err(error) = service.warn_of_unknown_tiers().await {
        tracing::warn!(error = isopod_wire::error_chain(&error), "could not read the tiers of teams");
    }
    let mut pace = tokio::time::interval(service.config.check_every);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reaped = None::<Instant>;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        let reconciled = tokio::select! {
            () = stop.cancelled() => return,
            reconciled = service.reconcile() => reconciled,
        };
        if let Err(error) = reconciled {
            tracing::warn!(
                error = isopod_wire::error_chain(&error),
                "could not reconcile all sandboxes of the service"
            );
        }
        if reaped.is_none_or(|at| at.elapsed() >= service.config.reap_every) {
            reaped = Some(Instant::now());
            if let Err(error) = service.reap().await {
                tracing::warn!(error = isopod_wire::error_chain(&error), "could not remove all old sandboxes");
            }
        }
    }
}

impl Service {
    /// Reconciles everything once.
    pub(crate) async fn reconcile(self: &Arc<Self>) -> Result<(), ServiceError> {
        // List the sandboxes first: each of them has a row by the time the rows are read.
        let label = BTreeMap::from([(SERVER_LABEL.to_owned(), self.server.clone())]);
        let listed = self.backend.list(&label).await?;
        let found: HashMap<&SandboxId, &BackendSandbox> = listed.iter().map(|sandbox| (&sandbox.id, sandbox)).collect();
        let rows = self.store.live_service_sandboxes(&self.server).await?;
        self.remove_orphans(&listed, &rows).await;
        for row in rows {
            self.reconcile_row(row, &found).await?;
        }
        Ok(())
    }

    async fn reconcile_row(
        self: &Arc<Self>,
        row: ServiceSandbox,
        found: &HashMap<&SandboxId, &BackendSandbox>,
    ) -> Result<(), ServiceError> {
        let Some(sandbox) = row.sandbox.clone() else { return self.reconcile_creating(row).await };
        if let Some(found) = found.get(&sandbox) {
            return self.seen(row, found.state).await.map(drop);
        }
        // It is not in the list, which may be outdated, or it was created through another API. Look it up by id.
        match self.backend.status(&sandbox).await {
            Ok(found) => self.seen(row, found.state).await.map(drop),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let ended = self.vanished(row).await?;
                self.audit_change(&ended, "sandbox.ended").await;
                Ok(())
            }
            Err(error) => {
                self.metrics.failure(error.kind().text());
                Ok(())
            }
        }
    }

    /// A create of an earlier process, or one past its deadline, will never finish.
    async fn reconcile_creating(&self, row: ServiceSandbox) -> Result<(), ServiceError> {
        let is_old = row.created_at.plus(self.config.create_deadline) <= Timestamp::now();
        if !is_old && row.created_at >= self.started {
            return Ok(());
        }
        self.remove_labelled(&row.create_key).await;
        let reason = if is_old { "create_deadline" } else { "create_interrupted" };
        let row = ServiceSandbox { idempotency: None, ..row };
        let ended = self.ended(row, Status::Error, reason.to_owned()).await?;
        self.audit_change(&ended, "sandbox.ended").await;
        Ok(())
    }

    /// Ends sandboxes of ours that no live row refers to: the reply of their create was lost, or their end failed
    /// halfway.
    async fn remove_orphans(&self, listed: &[BackendSandbox], rows: &[ServiceSandbox]) {
        let known: HashSet<&SandboxId> = rows.iter().filter_map(|row| row.sandbox.as_ref()).collect();
        let making: HashSet<&str> =
            rows.iter().filter(|row| row.sandbox.is_none()).map(|row| row.create_key.as_str()).collect();
        for sandbox in listed {
            let is_made = sandbox.metadata.get(CREATE_LABEL).is_some_and(|key| making.contains(key.as_str()));
            if !is_made && !known.contains(&sandbox.id) {
                tracing::warn!(sandbox = %sandbox.id, "removing a sandbox without a row");
                self.metrics.ended("orphan");
                self.remove(Some(&sandbox.id)).await;
            }
        }
    }

    /// Removes sandboxes that are too old, and old history.
    pub(crate) async fn reap(self: &Arc<Self>) -> Result<(), ServiceError> {
        let now = Timestamp::now();
        let oldest = now.minus(self.config.stale_after);
        for row in self.store.live_service_sandboxes(&self.server).await? {
            if row.created_at < oldest {
                let ended = self.end(row, "stale").await?;
                self.audit_change(&ended, "sandbox.reaped").await;
            }
        }
        self.store.prune_service(now.minus(self.config.keep_commands)).await?;
        self.store.prune_short_urls(now.minus(KEEP_EXPIRED)).await?;
        Ok(())
    }

    /// Audits a change that no request made.
    async fn audit_change(&self, row: &ServiceSandbox, action: &str) {
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
            tracing::warn!(sandbox = row.id, "could not audit the end of a sandbox yet");
        }
    }
}
