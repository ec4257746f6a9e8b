//! The builds that are under way. Each is a task: it waits for its turn, has the node build, and records what the node
//! says and how it ended. A server that dies leaves builds in the middle; the next one finds and fails them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use isopod_store::clock::Timestamp;
use isopod_store::{Build, BuildLine, BuildReason, BuildStatus, Level, Store, StoreError, TeamId};
use isopod_wire::build::{
    BuildError, BuildEvent, BuildFailure, BuildLevel, BuildSpec, BuiltTemplate, RemoveTemplateError,
};
use isopod_wire::node::NodeApi;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::catalogue::Catalogue;
use super::ledger::Reservation;
use super::limits::BuildLimits;
use super::log_allowance::LogAllowance;
use super::turns::Turns;
use crate::shares::{Share, Shares};

/// Builds under way.
pub(crate) struct Builds {
    store: Store,
    node: Arc<dyn NodeApi>,
    limits: BuildLimits,
    turns: Arc<Turns>,
    /// Builds that wait or are under way.
    queue: Arc<Shares>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// By build id. Written when a build is queued, ends or is cancelled.
    cancels: Mutex<HashMap<String, CancellationToken>>,
}

/// A build that is to be run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) team: TeamId,
    pub(crate) build: Build,
    pub(crate) spec: BuildSpec,
    /// A directory that goes when the build ends.
    pub(crate) context: Option<Context>,
    /// The team's, from [`Builds::place`].
    pub(crate) _place: Share,
}

/// The context of a build on this host.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) path: PathBuf,
    /// What it takes of the team's uploads.
    pub(crate) held: Reservation,
}

/// The team has as many builds as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the team has {0} builds that wait or are under way; start this one when one of them has ended")]
pub(crate) struct TooManyBuilds(usize);

const EVENTS_AT_ONCE: usize = 256;
const MAX_LINE: usize = 16 << 10;

impl Builds {
    pub(super) fn new(store: Store, node: Arc<dyn NodeApi>, limits: BuildLimits, stop: CancellationToken) -> Self {
        Self {
            store,
            node,
            limits,
            turns: Turns::new(limits.at_once),
            queue: Shares::new(limits.per_team),
            tasks: TaskTracker::new(),
            stop,
            cancels: Mutex::default(),
        }
    }

    /// How long one may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.limits.timeout
    }

    /// A place in the queue for a team's build.
    pub(crate) fn place(&self, team: &TeamId) -> Result<Share, TooManyBuilds> {
        self.queue.take(team).ok_or(TooManyBuilds(self.limits.per_team))
    }

    /// Queues a build that was asked for. `false`: it has begun already.
    pub(crate) async fn start(self: &Arc<Self>, job: Job) -> Result<bool, StoreError> {
        if !self.store.advance_build(&job.build.id, BuildStatus::Requested, BuildStatus::Queued).await? {
            remove_context(job.context.as_ref()).await;
            return Ok(false);
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

    /// Ends a build that is queued or under way. `false`: there is none.
    pub(crate) fn cancel(&self, build: &str) -> bool {
        self.lock().get(build).map(CancellationToken::cancel).is_some()
    }

    async fn run(&self, job: Job, cancel: CancellationToken) {
        let turn = tokio::select! {
            () = cancel.cancelled() => None,
            turn = self.turns.turn(&job.team) => turn,
        };
        let outcome = match turn {
            Some(_turn) => self.build(&job, cancel).await,
            None => Ok(Err(BuildReason { message: "the build was cancelled".to_owned(), step: None })),
        };
        remove_context(job.context.as_ref()).await;
        let recorded = match outcome {
            Ok(Ok(built)) => self.finish(&job.build, &built).await,
            Ok(Err(reason)) => self.store.fail_build(&job.build.id, &reason).await,
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            // The row stays as it is and is failed by the next start of the server.
            tracing::error!(
                build = job.build.id,
                error = isopod_wire::error_chain(&error),
                "the end of a build was not recorded"
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
                tracing::error!(build = job.build.id, phase = %error.phase, error = %error, "a build broke");
            }
            let last = BuildEvent {
                at: std::time::SystemTime::now(),
                level: BuildLevel::Error,
                phase: error.phase,
                message: told(error),
            };
            let _ = events_in.send(last).await;
        }
        drop(events_in);
        // Everything that was said is on record before the end is.
        let _ = writing.await;
        Ok(built.map_err(|error| BuildReason { message: told(&error), step: Some(error.phase.to_string()) }))
    }

    async fn finish(&self, build: &Build, built: &BuiltTemplate) -> Result<(), StoreError> {
        let size = i64::try_from(built.size.0).unwrap_or(i64::MAX);
        if self.store.finish_build(build, &built.id, size).await? {
            return Ok(());
        }
        // Its template was removed in the meantime.
        self.store.add_leftover(&built.id).await
    }

    /// Removes what the node made for templates that are gone, as far as no sandbox stands on it.
    pub(crate) async fn discard_leftovers(&self) -> Result<(), StoreError> {
        // What a build is just making may be what another left, so none may be under way.
        let Some(_alone) = self.turns.alone() else { return Ok(()) };
        for leftover in self.store.leftovers().await? {
            match self.node.remove_template(&leftover).await {
                Ok(()) | Err(RemoveTemplateError::NotFound(_)) => self.store.forget_leftover(&leftover).await?,
                Err(RemoveTemplateError::InUse(_)) => {}
                Err(error) => {
                    tracing::warn!(leftover, error = isopod_wire::error_chain(&error), "a template was not removed")
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

/// What people are told. What broke on our side they learn without its causes, which name files of this host.
fn told(error: &BuildError) -> String {
    match error.failure {
        BuildFailure::Cancelled => "the build was cancelled".to_owned(),
        BuildFailure::Internal => {
            let what = error.message.split(": ").next().unwrap_or_default();
            let place = error.place.as_ref().map(|(file, line)| format!("{file}:{line}: ")).unwrap_or_default();
            format!("{place}{what}; the server's log says why")
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
                tracing::warn!(build, error = isopod_wire::error_chain(&error), "what a build said was not recorded")
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

async fn remove_context(context: Option<&Context>) {
    let Some(Context { path, held }) = context else { return };
    match tokio::fs::remove_dir_all(path).await {
        Ok(()) => held.give_back(),
        Err(error) => tracing::warn!(path = %path.display(), %error, "the context of a build was not removed"),
    }
}

const UPKEEP_EVERY: Duration = Duration::from_secs(60);
const REQUESTS_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Fails what an earlier server left in the middle, then keeps house until the server stops, and waits for the builds.
pub async fn run_template_upkeep(catalogue: Arc<Catalogue>, stop: CancellationToken) {
    loop {
        if let Err(error) = keep_house(&catalogue).await {
            tracing::warn!(error = isopod_wire::error_chain(&error), "old builds were not removed");
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(UPKEEP_EVERY) => {}
        }
    }
    catalogue.builds.end().await;
}

impl Catalogue {
    /// At the start of a server, before it answers: nothing is under way yet.
    pub async fn recover(&self) -> Result<(), StoreError> {
        let reason = "the server was stopped while this was built; start the build again";
        let failed = self.store.fail_interrupted_builds(reason).await?;
        if failed > 0 {
            tracing::warn!(failed, "builds that a stopped server left");
        }
        if let Err(error) = self.uploads.clear_unfinished() {
            tracing::warn!(%error, "unfinished uploads were not removed");
        }
        Ok(())
    }
}

async fn keep_house(catalogue: &Catalogue) -> Result<(), StoreError> {
    let now = Timestamp::now();
    catalogue.store.drop_stale_requests(now.minus(REQUESTS_KEPT)).await?;
    let kept = catalogue.builds.limits.uploads_kept;
    catalogue.uploads.forget_old(&catalogue.store, now.minus(kept)).await?;
    catalogue.builds.discard_leftovers().await
}
