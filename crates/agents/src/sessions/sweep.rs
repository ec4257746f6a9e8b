//! Looks from time to time whether sessions, sandboxes and the map still agree, and finishes what was left half done:
//! cleanups that failed, sandboxes of ours that no session has, entries of sandboxes that are gone, files that are old.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{Owner, RESERVED, SessionRow, State, StoreError, TeamOwner};
use isopod_wire::SandboxId;

use super::{SessionError, Sessions};

const LOOKS_PER_TIDYING: u64 = 100;

/// Looks at this pace until the server stops.
pub(crate) async fn run_session_sweep(sessions: Arc<Sessions>, every: Duration) {
    let mut pace = tokio::time::interval(every.max(Duration::from_millis(10)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let stop = sessions.fleet.stopped();
    for look in 0_u64.. {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = pace.tick() => {}
        }
        if let Err(error) = sessions.sweep().await {
            tracing::warn!(error = isopod_wire::error_chain(&error), "the sessions were not all looked at");
        }
        // It looks at every row, and a call that was cut off by a cleanup leaves few.
        if look % LOOKS_PER_TIDYING == 0
            && let Err(error) = sessions.store.forget_lost_session_files().await
        {
            tracing::warn!(error = isopod_wire::error_chain(&error), "what lost sandboxes had is still recorded");
        }
        if look % LOOKS_PER_TIDYING == 0
            && let Err(error) = sessions.remove_unused_files().await
        {
            tracing::warn!(error = isopod_wire::error_chain(&error), "files that nobody uses were not all removed");
        }
    }
}

impl Sessions {
    async fn sweep(self: &Arc<Self>) -> Result<(), StoreError> {
        // Sandboxes first: a session is written before its sandbox is made and ends after it is gone.
        let ours: Vec<_> = self.fleet.all().into_iter().filter(|sandbox| is_of_a_session(sandbox)).collect();
        let rows = self.store.open_sessions().await?;
        let keys: HashSet<_> = rows.iter().map(|row| (row.team.clone(), row.owner.session_key())).collect();
        for sandbox in ours {
            let key = sandbox.view().row.session_key.clone().unwrap_or_default();
            if !keys.contains(&(sandbox.team().clone(), key)) {
                tracing::warn!(sandbox = %sandbox.id(), "no session has this sandbox; it is removed");
                if let Err(error) = sandbox.kill().await {
                    tracing::warn!(sandbox = %sandbox.id(), error = isopod_wire::error_chain(&error), "could not remove yet");
                }
            }
        }
        for row in rows {
            self.see_to(row).await;
        }
        self.remove_old_files().await
    }

    async fn see_to(self: &Arc<Self>, row: SessionRow) {
        let done = match row.is_ending || self.is_forgotten(&row) {
            true => self.dispose(&row.team, &row.owner).await.map(drop),
            false => {
                self.see_to_entry(&row).await;
                Ok(())
            }
        };
        if let Err(error) = done {
            tracing::warn!(owner = %row.owner, error = isopod_wire::error_chain(&error), "a session could not be ended yet");
        }
    }

    /// Its sandbox was paused so long ago that nobody will come back for it.
    fn is_forgotten(&self, row: &SessionRow) -> bool {
        let Some(sandbox) = row.sandbox.as_ref().and_then(|id| self.fleet.find_of(&row.team, id)) else { return false };
        let view = sandbox.view();
        let idle = view.row.ends_at.until(Timestamp::now());
        matches!(view.row.state, State::Paused(_)) && idle > self.settings.keep_paused
    }

    async fn see_to_entry(&self, row: &SessionRow) {
        let Some(id) = &row.sandbox else { return };
        match self.fleet.find_of(&row.team, id) {
            Some(sandbox) => self.mirror(&row.owner, &sandbox).await,
            None if self.with_mirrored(|all| all.contains_key(&TeamOwner::new(&row.team, &row.owner))) => {
                self.unmirror(&row.team, &row.owner, Some(id)).await;
            }
            None => {}
        }
    }

    /// What runs have put out is kept for a while after the last of it, then it goes with the input.
    async fn remove_old_files(&self) -> Result<(), StoreError> {
        let before = Timestamp::now().minus(self.settings.keep_files);
        for (team, run) in self.store.runs_with_old_artifacts(before).await? {
            let Ok(owner) = Owner::run(&run) else { continue };
            // A run that goes on still needs them.
            if self.store.find_session_of(&team, &owner).await?.is_some() {
                continue;
            }
            let directory = self.directories.of(&team, &owner);
            let removing = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(directory));
            match removing.await {
                Ok(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(%owner, %error, "old files of a run could not be removed");
                }
                _ => drop(self.store.forget_artifacts(&team, &run).await?),
            }
        }
        Ok(())
    }

    /// Files that were put there for runs that never put anything out go after the same while: no artifact tells of them.
    /// Directories that others use too are theirs to keep in order.
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
                    tracing::warn!(%owner, %error, "unused files could not be removed");
                }
                _ => tracing::info!(%owner, "unused files were removed"),
            }
        }
        Ok(())
    }

    /// The owners of all sessions that have not ended, with the sandboxes they have.
    #[allow(dead_code, reason = "for the runs that are made of calls")]
    pub(crate) async fn open_owners(
        &self,
    ) -> Result<Vec<(isopod_store::TeamId, Owner, Option<SandboxId>)>, SessionError> {
        let rows = self.store.open_sessions().await?;
        Ok(rows.into_iter().map(|row| (row.team, row.owner, row.sandbox)).collect())
    }
}

fn is_of_a_session(sandbox: &isopod_control::lifecycle::Sandbox) -> bool {
    sandbox.view().row.session_key.as_deref().is_some_and(|key| key.starts_with(RESERVED))
}
