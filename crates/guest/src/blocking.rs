//! Runs work that may wait for a disk on a few threads, which start on demand and end when idle.
//!
//! The runtime's own pool panics when it cannot start a thread. That is an ordinary event here: a sandbox may have used up
//! its processes. This pool then runs the work on the calling thread: slower, but it gets done.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// File operations need little stack, and few of them run at the same time.
const MAX_THREADS: usize = 8;
const STACK_SIZE: usize = 256 << 10;
const IDLE_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs `work` on another thread. The receiver gets its result, or an error if it panicked.
pub(crate) fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    POOL.submit(Box::new(move || {
        // The caller may have stopped waiting.
        let _ = done.send(work());
    }));
    result
}

type Job = Box<dyn FnOnce() + Send>;

struct Pool {
    state: Mutex<State>,
    /// Wakes an idle thread when there is a job.
    wake: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Pool =
    Pool { state: Mutex::new(State { jobs: VecDeque::new(), threads: 0, idle: 0 }), wake: Condvar::new() };

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&'static self, job: Job) {
        let mut state = self.state();
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            self.wake.notify_one();
            return;
        }
        if state.threads < MAX_THREADS && self.start_thread() {
            state.threads += 1;
        }
        if state.threads > 0 {
            return;
        }
        let job = state.jobs.pop_back();
        drop(state);
        if let Some(job) = job {
            job();
        }
    }

    fn start_thread(&'static self) -> bool {
        let thread = std::thread::Builder::new().name("files".to_owned()).stack_size(STACK_SIZE);
        thread.spawn(|| while self.next_job().is_some_and(run_job) {}).is_ok()
    }

    /// Waits a while for a job. `None` means that the thread should end.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.state();
        if state.jobs.is_empty() {
            state.idle += 1;
            let waited = self.wake.wait_timeout_while(state, IDLE_TIMEOUT, |state| state.jobs.is_empty());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.idle -= 1;
        }
        let job = state.jobs.pop_front();
        if job.is_none() {
            state.threads -= 1;
        }
        job
    }
}

/// Runs a job. A panic ends the job, not its thread.
fn run_job(job: Job) -> bool {
    let _ = catch_unwind(AssertUnwindSafe(job));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn more_jobs_than_threads_are_all_done() {
        let jobs: Vec<_> = (0..200)
            .map(|number| {
                run(move || {
                    std::thread::sleep(Duration::from_millis(1));
                    number
                })
            })
            .collect();
        for (number, job) in jobs.into_iter().enumerate() {
            assert_eq!(job.await.unwrap(), number);
        }
        assert!(POOL.state().threads <= MAX_THREADS);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_the_next_job_is_done() {
        assert!(run(|| panic!("on purpose")).await.is_err());
        assert_eq!(run(|| 1).await.unwrap(), 1);
    }
}
