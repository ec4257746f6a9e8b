//! Builds templates: from the SDK's steps or a Dockerfile to layers and a manifest.
//!
//! ```text
//! base (host, image, template) ── step ── step ── … ── provision ── start command tried ── manifest
//!                                  └ key of base and instructions ─▶ known: its layer
//!                                                                └▶ new: run on the bench, keep what changed
//! ```
//!
//! Steps run in sandboxes like any other; files are copied from outside, by paths that the kernel resolves inside. A
//! build that fails, is cancelled or takes too long leaves the layers of the steps that were done, and nothing else.

mod accounts;
mod add;
mod base;
mod bench;
mod cache;
mod copy;
mod dockerfile;
mod finish;
mod image;
mod log;
mod provision;
mod source;
mod stack;
mod step;
mod steps;
mod trouble;
mod view;

use std::sync::Arc;

use isopod_wire::Limits;
use isopod_wire::build::{BuildError, BuildEvent, BuildFailure, BuildPhase, BuildSource, BuildSpec, BuiltTemplate};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(crate) use cache::Turns;

use crate::sandbox::Fleet;
use bench::Bench;
use cache::Cache;
use log::Log;
use trouble::Trouble;

impl Fleet {
    /// Builds a template. See [`isopod_wire::node::NodeApi::build_template`].
    pub(crate) async fn build(
        self: &Arc<Self>,
        spec: BuildSpec,
        events: mpsc::Sender<BuildEvent>,
        cancel: CancellationToken,
    ) -> Result<BuiltTemplate, BuildError> {
        let mut builder = Builder::new(self, &spec, events);
        let outcome = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(stopped(BuildFailure::Cancelled, "the build was cancelled")),
            () = tokio::time::sleep(spec.timeout) => {
                let waited = spec.timeout.as_secs();
                Err(stopped(BuildFailure::TimedOut, &format!("the build took more than {waited} s")))
            }
            built = builder.build() => built,
        };
        builder.close().await;
        match outcome {
            Ok(built) => Ok(built),
            Err(trouble) => Err(builder.explain(trouble).await),
        }
    }
}

fn stopped(failure: BuildFailure, message: &str) -> Trouble {
    Trouble { failure, message: message.to_owned() }
}

/// A build that goes on.
#[derive(Debug)]
struct Builder<'a> {
    fleet: &'a Arc<Fleet>,
    spec: &'a BuildSpec,
    log: Log,
    cache: Cache,
    limits: Limits,
    /// Where steps run, once one had to.
    bench: Option<Bench>,
    /// The file and line that is worked on.
    place: Option<(String, u32)>,
    /// Set by the first forced step: what follows stands on it.
    is_forced: bool,
}

impl<'a> Builder<'a> {
    fn new(fleet: &'a Arc<Fleet>, spec: &'a BuildSpec, events: mpsc::Sender<BuildEvent>) -> Self {
        Self {
            fleet,
            spec,
            log: Log::new(events),
            cache: Cache::new(&fleet.templates_directory()),
            limits: spec.limits,
            bench: None,
            place: None,
            is_forced: spec.force,
        }
    }

    async fn build(&mut self) -> Result<BuiltTemplate, Trouble> {
        self.limits.check().map_err(|error| Trouble::invalid(format!("limits: {error}")))?;
        let spec = self.spec;
        let (stack, settings) = match &spec.source {
            BuildSource::Steps { from, steps } => self.build_steps(from, steps).await?,
            BuildSource::Dockerfile(source) => self.build_dockerfile(source).await?,
        };
        self.enter(BuildPhase::Finalize, None);
        self.finish(stack, settings).await
    }

    /// From now on messages and errors belong there.
    fn enter(&mut self, phase: BuildPhase, place: Option<(String, u32)>) {
        self.log = self.log.at(phase);
        self.place = place;
    }

    async fn explain(&self, trouble: Trouble) -> BuildError {
        let Trouble { failure, message } = trouble;
        let error = BuildError { failure, phase: self.log.phase(), place: self.place.clone(), message };
        self.log.error(error.to_string()).await;
        error
    }

    async fn close(&mut self) {
        if let Some(bench) = self.bench.take() {
            bench.close().await;
        }
    }
}
