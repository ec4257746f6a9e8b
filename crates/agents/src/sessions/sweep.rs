//! Periodically compares sessions, sandboxes and the map, and finishes what was left incomplete: failed cleanups,
//! sandboxes that no session has, entries of sandboxes that are gone, old files, promoted files that have expired.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{Owner, RESERVED, SessionRow, State, StoreError, TeamOwner};

use super::{SessionError, Sessions};

const SWEEPS_PER_CLEANUP: u64 = 100;

/// Sweeps at this interval until the server stops.
pub(crate) async fn run_session_sweep(sessions: Arc<Sessions>, every: Duration) {
    let mut pace = tokio::time::interval(every.max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let stop = sessions.fleet.stopped();
    for round in 0_u64.. {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        if let Err(error) = sessions.sweep().await {
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not sweep all sessions");
        }
        // This scans every row, and few are left over by calls that a cleanup cut off.
        if round % SWEEPS_PER_CLEANUP == 0
            && let Err(error) = sessions.store.forget_lost_session_files().await
        {
            tracing::warn!(
                error = isopod_wire::error_chain(&error),
                "could not remove the file records of lost sandboxes"
            );
        }
        if round % SWEEPS_PER_CLEANUP == 0
            && let Err(error) = sessions.remove_unused_files().await
        {
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not remove all unused files");
        }
    }
}

impl Sessions {
    async fn sweep(self: &Arc<Self>) -> Result<(), StoreError> {
        // List the sandboxes first: a session is written before its sandbox is created, and ends after it is gone.
        let ours: Vec<_> = self.fleet.all().into_iter().filter(|sandbox| is_of_a_session(sandbox)).collect();
        let rows = self.store.open_sessions().await?;
        let keys: HashSet<_> = rows.iter().map(|row| (row.team.clone(), row.owner.session_key())).collect();
        for sandbox in ours {
            let key = sandbox.view().row.session_key.clone().unwrap_or_default();
            if !keys.contains(&(sandbox.team().clone(), key)) {
                tracing::warn!(sandbox = %sandbox.id(), "no session has this sandbox; removing it");
                if let Err(error) = sandbox.kill().await {
                    tracing::warn!(sandbox = %sandbox.id(), error = isopod_wire::error_chain(&error), "could not remove a sandbox yet");
                }
            }
        }
        for row in rows {
            self.sweep_session(row).await;
        }
        self.remove_old_files().await?;
        self.remove_expired_promotions().await
    }

    async fn sweep_session(self: &Arc<Self>, row: SessionRow) {
        let done = match row.is_ending || self.is_forgotten(&row) {
            true => self.dispose(&row.team, &row.owner).await.map(drop),
            false => {
                self.update_entry(&row).await;
                Ok(())
            }
        };
        match done {
            // The map has logged that it does not answer. Every row would repeat that at every sweep.
            Ok(()) | Err(SessionError::Unfinished { .. }) => {}
            Err(error) => {
                tracing::warn!(owner = %row.owner, error = isopod_wire::error_chain(&error), "could not end a session yet")
            }
        }
    }

    /// Whether its sandbox has been paused for longer than paused sandboxes are kept.
    fn is_forgotten(&self, row: &SessionRow) -> bool {
        let Some(sandbox) = row.sandbox.as_ref().and_then(|id| self.fleet.find_of(&row.team, id)) else { return false };
        let view = sandbox.view();
        let idle = view.row.ends_at.until(Timestamp::now());
        matches!(view.row.state, State::Paused(_)) && idle > self.settings.keep_paused
    }

    async fn update_entry(&self, row: &SessionRow) {
        let Some(id) = &row.sandbox else { return };
        match self.fleet.find_of(&row.team, id) {
            Some(sandbox) => self.mirror(&row.owner, &sandbox).await,
            None if self.with_mirrored(|all| all.contains_key(&TeamOwner::new(&row.team, &row.owner))) => {
                self.unmirror(&row.team, &row.owner, id).await;
            }
            None => {}
        }
    }

    /// Removes the files of runs whose last output is older than the limit.
    async fn remove_old_files(&self) -> Result<(), StoreError> {
        let before = Timestamp::now().minus(self.settings.keep_files);
        for (team, run) in self.store.runs_with_old_artifacts(before).await? {
            let Ok(owner) = Owner::run(&run) else { continue };
            // A run that is still active needs them.
            if self.store.find_session_of(&team, &owner).await?.is_some() {
                continue;
            }
            let directory = self.directories.of(&team, &owner);
            let removing = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(directory));
            match removing.await {
                Ok(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(%owner, %error, "could not remove old files of a run");
                }
                _ => drop(self.store.forget_artifacts(&team, &run).await?),
            }
        }
        Ok(())
    }

    /// Removes files of runs that never produced output, after the same time, because no artifact refers to them.
    /// Shared directories are left to their owners.
    async fn remove_unused_files(&self) -> Result<(), StoreError> {
        let before = Timestamp::now().minus(self.settings.keep_files);
        let directories = self.directories.clone();
        let looking = tokio::task::spawn_blocking(move || directories.not_touched_since(before));
        for (team, owner, directory) in looking.await.unwrap_or_default() {
            let is_in_use = self.store.find_session_of(&team, &owner).await?.is_some();
            if is_in_use || !self.store.artifacts_of(&team, owner.id()).await?.is_empty() {
                continue;
            }
            match tokio::task::spawn_blocking(move || std::fs::remove_dir_all(directory)).await {
                Ok(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(%owner, %error, "could not remove unused files");
                }
                _ => tracing::info!(%owner, "removed unused files"),
            }
        }
        Ok(())
    }
}

fn is_of_a_session(sandbox: &isopod_control::lifecycle::Sandbox) -> bool {
    sandbox.view().row.session_key.as_deref().is_some_and(|key| key.starts_with(RESERVED))
}
