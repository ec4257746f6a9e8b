//! Work that may wait for a disk, on a few threads that come when needed and leave when idle.
//!
//! The runtime's own pool panics when no thread can be made, and a sandbox that has used up its processes is an ordinary
//! event here. Then the work is done at once where it was asked for: slowly, but done.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// File operations need little stack, and few of them run at the same time.
const MOST_THREADS: usize = 8;
const STACK: usize = 256 << 10;
const IDLE: Duration = Duration::from_millis(500);

/// Runs `work` elsewhere. The receiver gets what it gives, or an error if it panicked.
pub(crate) fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    POOL.submit(Box::new(move || {
        // Who asked may have gone away.
        let _ = done.send(work());
    }));
    result
}

type Job = Box<dyn FnOnce() + Send>;

struct Pool {
    state: Mutex<State>,
    /// Wakes an idle thread: there is a job.
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
        if state.threads < MOST_THREADS && self.start_thread() {
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
        let thread = std::thread::Builder::new().name("files".to_owned()).stack_size(STACK);
        thread.spawn(|| while self.next_job().is_some_and(finish) {}).is_ok()
    }

    /// Waits a while for something to do; `None` means that the thread is not needed.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.state();
        if state.jobs.is_empty() {
            state.idle += 1;
            let waited = self.wake.wait_timeout_while(state, IDLE, |state| state.jobs.is_empty());
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

/// A job that panics ends alone.
fn finish(job: Job) -> bool {
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
        assert!(POOL.state().threads <= MOST_THREADS);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_the_next_job_is_done() {
        assert!(run(|| panic!("on purpose")).await.is_err());
        assert_eq!(run(|| 1).await.unwrap(), 1);
    }
}
