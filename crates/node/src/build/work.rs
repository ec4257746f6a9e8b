//! The threads on which a build works on files. Untrusted files can keep them busy for a long time. So they check
//! regularly whether the build has been stopped, and a build ends only after its threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use isopod_disk::available_at;
use isopod_image::unpack::{Bounds, Quota};
use isopod_wire::build::BuildFailure;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::step_error::StepError;

/// How often the free disk space is checked, because that costs more than checking the flag.
const CHECK_EVERY: u64 = 64;

/// The threads of one build.
#[derive(Debug)]
pub(super) struct Work {
    /// Set once, when the build ends.
    stop: Arc<AtomicBool>,
    tasks: TaskTracker,
    /// The directory that everything is written to.
    templates: PathBuf,
    /// Returns how much may still be written there.
    room: fn(&Path) -> u64,
}

impl Work {
    pub(super) fn new(templates: &Path) -> Self {
        Self { stop: Arc::default(), tasks: TaskTracker::new(), templates: templates.to_owned(), room: available_at }
    }

    /// Runs a closure on a thread of its own. Long work needs a [`Work::quota`], so that it can be stopped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, StepError> + Send + 'static,
    ) -> Result<T, StepError> {
        finished(self.start(work).await)
    }

    /// As [`Work::run`], without waiting. Pass the result to [`finished`].
    pub(super) fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, StepError> + Send + 'static,
    ) -> JoinHandle<Result<T, StepError>> {
        self.tasks.spawn_blocking(work)
    }

    /// A quota that also ends when the build is stopped or the disk has no space left besides its reserve.
    pub(super) fn quota(&self, bounds: Bounds) -> Quota {
        let (stop, templates, looks) = (Arc::clone(&self.stop), self.templates.clone(), AtomicU64::new(0));
        let room = self.room;
        Quota::new(bounds).stopped_by(move || {
            if stop.load(Ordering::Relaxed) {
                return Some("the build was stopped".to_owned());
            }
            let is_due = looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECK_EVERY);
            let is_full = is_due && room(&templates) == 0;
            is_full.then(|| "the server's disk is full; free space there, or ask its operator to".to_owned())
        })
    }

    /// Tells all current and future threads to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Tells all threads to stop, and waits for them.
    pub(super) async fn end(&self) {
        self.stop();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Work {
    /// Stops the threads if a build is dropped.
    fn drop(&mut self) {
        self.stop();
    }
}

/// The result of a thread.
pub(super) fn finished<T>(joined: Result<Result<T, StepError>, JoinError>) -> Result<T, StepError> {
    joined.map_err(|error| StepError::internal("finish the step", error))?
}

/// Runs a build until it is done, cancelled or takes too long. Threads may still be running afterwards: see
/// [`Work::end`].
pub(super) async fn until_stopped<T>(
    build: impl Future<Output = Result<T, StepError>>,
    timeout: Duration,
    cancel: &CancellationToken,
) -> Result<T, StepError> {
    let stopped = |failure, message: String| Err(StepError { failure, message });
    tokio::select! {
        biased;
        () = cancel.cancelled() => stopped(BuildFailure::Cancelled, "the build was cancelled".to_owned()),
        () = tokio::time::sleep(timeout) => {
            stopped(BuildFailure::TimedOut, format!("the build took more than {} s", timeout.as_secs()))
        }
        built = build => built,
    }
}

#[cfg(test)]
mod tests {
    use isopod_image::dockerfile::IgnoreRules;

    use super::super::source::Source;
    use super::super::view::View;
    use super::*;

    /// Runs `work` as a build does, and cancels it while it runs. Returns the number of threads before and after.
    async fn cancel_while<T: Send + 'static>(
        work: &Arc<Work>,
        what: impl FnOnce(&Quota) -> std::io::Result<T> + Send + 'static,
    ) -> (usize, usize) {
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let quota = work.quota(Bounds { bytes: u64::MAX, entries: u64::MAX });
        let building = work.run(move || {
            let _ = begun.send(());
            what(&quota).map(drop).map_err(|error| StepError::step(error.to_string()))
        });
        let cancel = CancellationToken::new();
        let (outcome, live) = tokio::join!(until_stopped(building, Duration::from_secs(600), &cancel), async {
            has_begun.await.unwrap();
            let live = work.tasks.len();
            cancel.cancel();
            live
        });
        assert_eq!(outcome.unwrap_err().failure, BuildFailure::Cancelled);
        work.end().await;
        (live, work.tasks.len())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cancelled_build_ends_when_its_threads_have() {
        let root = tempfile::tempdir().unwrap();
        // Hashing all of it would take an hour.
        std::fs::File::create(root.path().join("sparse")).unwrap().set_len(1 << 42).unwrap();
        let source = |ignore: &str| {
            let ignore = IgnoreRules::parse(ignore).unwrap();
            Source { ignore, ..Source::of(View::of_directory(root.path()).unwrap()) }
        };
        let endless = source("");
        let work = Arc::new(Work::new(root.path()));
        let counts = cancel_while(&work, move |quota| endless.digest(&[PathBuf::new()], quota)).await;
        assert_eq!(counts, (1, 0));

        // Few files, but rules that are slow for each of them.
        for number in 0..2000 {
            std::fs::write(root.path().join(format!("{number:0>200}")), "").unwrap();
        }
        let slow = source(&format!("{}!\n", "*a".repeat(500)).repeat(200));
        let work = Arc::new(Work::new(root.path()));
        let counts = cancel_while(&work, move |quota| slow.matches("**/x", quota)).await;
        assert_eq!(counts, (1, 0));
    }

    #[test]
    fn nothing_is_written_to_a_disk_that_has_only_its_reserve() {
        let root = tempfile::tempdir().unwrap();
        let mut work = Work::new(root.path());
        work.room = |_| 0;
        let refused = work.quota(Bounds::default()).take_bytes(1).unwrap_err();
        assert!(refused.to_string().contains("disk is full"), "{refused}");
    }

    #[tokio::test]
    async fn a_build_that_nobody_waits_for_stops() {
        let root = tempfile::tempdir().unwrap();
        let work = Work::new(root.path());
        let quota = work.quota(Bounds::default());
        assert_eq!(quota.check(), Ok(()));
        drop(work);
        assert!(quota.check().is_err());
    }
}
