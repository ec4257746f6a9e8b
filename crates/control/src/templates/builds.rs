//! Runs builds. Each is a task: it waits for a slot, lets the node build, and records the log and the result. If a
//! server dies, the next one finds the interrupted builds and marks them as failed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isopod_api::{PerTeamLimit, TeamPermit};
use isopod_store::clock::Timestamp;
use isopod_store::{Build, BuildLine, BuildReason, BuildStatus, Level, Store, StoreError, TeamId};
use isopod_wire::build::{
    BuildError, BuildEvent, BuildFailure, BuildLevel, BuildSpec, BuiltTemplate, RemoveTemplateError,
};
use isopod_wire::node::NodeApi;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::build_queue::BuildQueue;
use super::catalogue::Catalogue;
use super::ledger::Reservation;
use super::limits::BuildLimits;
use super::log_allowance::LogAllowance;

/// Queued and running builds.
pub(crate) struct Builds {
    store: Store,
    node: Arc<dyn NodeApi>,
    limits: BuildLimits,
    queue: Arc<BuildQueue>,
    /// Limits the queued and running builds of each team.
    permits: Arc<PerTeamLimit>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// By build id. Written when a build is queued, ends or is cancelled.
    cancels: Mutex<HashMap<String, CancellationToken>>,
}

/// A build to run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) team: TeamId,
    pub(crate) build: Build,
    pub(crate) spec: BuildSpec,
    /// Removed when the build ends.
    pub(crate) context: Option<Context>,
    /// The team's permit from [`Builds::permit`].
    pub(crate) _permit: TeamPermit,
}

/// The context of a build on this host.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) path: PathBuf,
    /// Its size, reserved in the team's quota.
    pub(crate) held: Reservation,
}

/// The team has reached its limit of builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the team already has {0} queued or running builds; try again when one of them has ended")]
pub(crate) struct TooManyBuilds(usize);

const EVENTS_AT_ONCE: usize = 256;
const MAX_LINE: usize = 16 << 10;

impl Builds {
    pub(super) fn new(store: Store, node: Arc<dyn NodeApi>, limits: BuildLimits, stop: CancellationToken) -> Self {
        Self {
            store,
            node,
            limits,
            queue: BuildQueue::new(limits.at_once),
            permits: PerTeamLimit::new(limits.per_team),
            tasks: TaskTracker::new(),
            stop,
            cancels: Mutex::default(),
        }
    }

    /// The time limit of one build.
    pub(crate) fn timeout(&self) -> Duration {
        self.limits.timeout
    }

    /// Returns a permit to queue a build of the team.
    pub(crate) fn permit(&self, team: &TeamId) -> Result<TeamPermit, TooManyBuilds> {
        self.permits.take(team).ok_or(TooManyBuilds(self.limits.per_team))
    }

    /// Queues a requested build. Returns `false` if it was already started.
    pub(crate) async fn start(self: &Arc<Self>, job: Job) -> Result<bool, StoreError> {
        let advanced = self.store.advance_build(&job.build.id, BuildStatus::Requested, BuildStatus::Queued).await;
        if !matches!(advanced, Ok(true)) {
            remove_context(job.context.as_ref()).await;
            return advanced;
        }
        let cancel = self.stop.child_token();
        self.lock().insert(job.build.id.clone(), cancel.clone());
        let builds = Arc::clone(self);
        self.tasks.spawn(async move {
            let id = job.build.id.clone();
            builds.run(job, cancel).await;
            builds.lock().remove(&id);
        });
        Ok(true)
    }

    /// Cancels a queued or running build. Returns `false` if there is none.
    pub(crate) fn cancel(&self, build: &str) -> bool {
        self.lock().get(build).map(CancellationToken::cancel).is_some()
    }

    async fn run(&self, job: Job, cancel: CancellationToken) {
        let slot = tokio::select! {
            () = cancel.cancelled() => None,
            slot = self.queue.acquire(&job.team) => slot,
        };
        let outcome = match slot {
            Some(_slot) => self.build(&job, cancel).await,
            None => Ok(Err(BuildReason { message: "the build was cancelled".to_owned(), step: None })),
        };
        remove_context(job.context.as_ref()).await;
        let recorded = match outcome {
            Ok(Ok(built)) => self.finish(&job.build, &built).await,
            Ok(Err(reason)) => self.store.fail_build(&job.build.id, &reason).await,
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            // The row stays as it is, and the next start of the server marks it as failed.
            tracing::error!(
                build = job.build.id,
                error = isopod_wire::error_chain(&error),
                "could not record the result of a build"
            );
        }
    }

    async fn build(
        &self,
        job: &Job,
        cancel: CancellationToken,
    ) -> Result<Result<BuiltTemplate, BuildReason>, StoreError> {
        if !self.store.advance_build(&job.build.id, BuildStatus::Queued, BuildStatus::Building).await? {
            let message = "the build was removed".to_owned();
            return Ok(Err(BuildReason { message, step: None }));
        }
        let (events_in, events) = mpsc::channel(EVENTS_AT_ONCE);
        let writing = tokio::spawn(write_events(self.store.clone(), job.build.id.clone(), events));
        let built = self.node.build_template(job.spec.clone(), events_in.clone(), cancel).await;
        if let Err(error) = &built {
            if error.failure == BuildFailure::Internal {
                tracing::error!(build = job.build.id, phase = %error.phase, error = %error, "a build failed with an internal error");
            }
            let last = BuildEvent {
                at: std::time::SystemTime::now(),
                level: BuildLevel::Error,
                phase: error.phase,
                message: public_message(error),
            };
            let _ = events_in.send(last).await;
        }
        drop(events_in);
        // All lines are recorded before the result.
        let _ = writing.await;
        Ok(built.map_err(|error| BuildReason { message: public_message(&error), step: Some(error.phase.to_string()) }))
    }

    async fn finish(&self, build: &Build, built: &BuiltTemplate) -> Result<(), StoreError> {
        let size = i64::try_from(built.size.0).unwrap_or(i64::MAX);
        if self.store.finish_build(build, &built.id, size).await? {
            return Ok(());
        }
        // Its template was removed in the meantime.
        self.store.add_leftover(&built.id).await
    }

    /// Removes what the node built for templates that are gone, unless a sandbox uses it.
    pub(crate) async fn discard_leftovers(&self) -> Result<(), StoreError> {
        // A running build may produce the same result as an earlier one, so none may run meanwhile.
        let Some(_exclusive) = self.queue.try_exclusive() else { return Ok(()) };
        for leftover in self.store.leftovers().await? {
            match self.node.remove_template(&leftover).await {
                Ok(()) | Err(RemoveTemplateError::NotFound(_)) => self.store.forget_leftover(&leftover).await?,
                Err(RemoveTemplateError::InUse(_)) => {}
                Err(error) => {
                    tracing::warn!(
                        leftover,
                        error = isopod_wire::error_chain(&error),
                        "could not remove the files of a deleted template"
                    )
                }
            }
        }
        Ok(())
    }

    async fn end(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Builds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builds").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Returns the message for users. For an internal error, it leaves out the causes, which name files of this host.
fn public_message(error: &BuildError) -> String {
    match error.failure {
        BuildFailure::Cancelled => "the build was cancelled".to_owned(),
        BuildFailure::Internal => {
            let what = error.message.split(": ").next().unwrap_or_default();
            let place = error.place.as_ref().map(|(file, line)| format!("{file}:{line}: ")).unwrap_or_default();
            format!("{place}{what}; see the server's log for details")
        }
        _ => error.to_string(),
    }
}

async fn write_events(store: Store, build: String, mut events: mpsc::Receiver<BuildEvent>) {
    let (mut next, mut batch, mut allowance) = (0, Vec::new(), LogAllowance::default());
    while events.recv_many(&mut batch, EVENTS_AT_ONCE).await > 0 {
        let lines: Vec<BuildLine> = batch.drain(..).filter_map(|event| allowance.take(line_of(event))).collect();
        if lines.is_empty() {
            continue;
        }
        match store.insert_build_lines(&build, next, &lines).await {
            Ok(()) => next += i64::try_from(lines.len()).unwrap_or(0),
            Err(error) => {
                tracing::warn!(build, error = isopod_wire::error_chain(&error), "could not record the log of a build")
            }
        }
    }
}

fn line_of(event: BuildEvent) -> BuildLine {
    let level = match event.level {
        BuildLevel::Debug => Level::Debug,
        BuildLevel::Info => Level::Info,
        BuildLevel::Warn => Level::Warn,
        BuildLevel::Error => Level::Error,
    };
    let mut message = event.message;
    if message.len() > MAX_LINE {
        message.truncate(message.floor_char_boundary(MAX_LINE));
        message.push('…');
    }
    BuildLine { at: Timestamp::from(event.at), level, step: Some(event.phase.to_string()), message }
}

pub(super) async fn remove_context(context: Option<&Context>) {
    let Some(Context { path, held }) = context else { return };
    match tokio::fs::remove_dir_all(path).await {
        Ok(()) => held.give_back(),
        Err(error) => tracing::warn!(path = %path.display(), %error, "could not remove the context of a build"),
    }
}

const MAINTENANCE_EVERY: Duration = Duration::from_secs(60);
const REQUESTS_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Cleans up old builds and uploads until the server stops, then waits for running builds.
pub async fn run_template_maintenance(catalogue: Arc<Catalogue>, stop: CancellationToken) {
    loop {
        if let Err(error) = clean_up(&catalogue).await {
            tracing::warn!(error = isopod_wire::error_chain(&error), "could not clean up old builds");
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(MAINTENANCE_EVERY) => {}
        }
    }
    catalogue.builds.end().await;
}

impl Catalogue {
    /// Marks interrupted builds as failed. Called when a server starts, before it answers requests, so no build is
    /// running.
    pub async fn recover(&self) -> Result<(), StoreError> {
        let reason = "the server stopped during the build; start the build again";
        let failed = self.store.fail_interrupted_builds(reason).await?;
        if failed > 0 {
            tracing::warn!(failed, "marked interrupted builds as failed");
        }
        if let Err(error) = self.uploads.clear_unfinished() {
            tracing::warn!(%error, "could not remove unfinished uploads");
        }
        Ok(())
    }
}

async fn clean_up(catalogue: &Catalogue) -> Result<(), StoreError> {
    let now = Timestamp::now();
    catalogue.store.drop_stale_requests(now.minus(REQUESTS_KEPT)).await?;
    let kept = catalogue.builds.limits.uploads_kept;
    catalogue.uploads.forget_old(&catalogue.store, now.minus(kept)).await?;
    catalogue.waiting.forget_old(Instant::now()).await;
    catalogue.builds.discard_leftovers().await
}
