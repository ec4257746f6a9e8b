//! Runs jobs in parallel lanes. Choosing the next one is a pure function; the rest waits for processes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::jobs::Job;
use super::log::Summary;
use super::options::Extent;
use super::times::Times;
use crate::program::processors;
use crate::steps::show;

/// The group of jobs that run while nothing else does.
pub(crate) const ALONE: &str = "alone";
/// A job that takes longer hangs.
const TIME_LIMIT: Duration = Duration::from_secs(40 * 60);
const TIME_LIMIT_FULL: Duration = Duration::from_secs(12 * 60 * 60);
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(crate) struct Lanes {
    logs: PathBuf,
    count: usize,
    time_limit: Duration,
}

/// The result of a job.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) job: Job,
    pub(crate) took: Duration,
    pub(crate) passed: bool,
    pub(crate) summary: Summary,
}

impl Lanes {
    /// Uses one more lane than processors, because tests of real sandboxes wait a lot.
    pub(crate) fn new(logs: PathBuf, extent: Extent) -> Result<Self, String> {
        fs::create_dir_all(&logs).map_err(|error| format!("cannot create {}: {error}", logs.display()))?;
        let time_limit = if extent == Extent::Full { TIME_LIMIT_FULL } else { TIME_LIMIT };
        Ok(Self { logs, count: processors() + 1, time_limit })
    }

    /// Runs all jobs, whether others fail or not.
    pub(crate) fn run(&self, mut jobs: Vec<Job>, times: &Times) -> Vec<Outcome> {
        jobs.iter_mut().for_each(|job| job.seconds = times.of(&job.name).unwrap_or(job.seconds));
        let total = jobs.len();
        let queue = Mutex::new(Queue { waiting: jobs, ..Queue::default() });
        let (changed, outcomes) = (Condvar::new(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..self.count.min(total) {
                scope.spawn(|| {
                    while let Some(job) = take(&queue, &changed) {
                        let group = job.group.clone();
                        let outcome = self.run_one(job);
                        let mut all = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                        eprintln!("{}", outcome.line(all.len() + 1, total));
                        if !outcome.passed {
                            eprintln!("{}", self.log_of(&outcome.job));
                        }
                        all.push(outcome);
                        drop(all);
                        queue.lock().unwrap_or_else(PoisonError::into_inner).finish(group.as_deref());
                        changed.notify_all();
                    }
                });
            }
        });
        outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_one(&self, job: Job) -> Outcome {
        let start = Instant::now();
        let path = self.log_path(&job);
        let ended = start_job(&job, &path).and_then(|child| wait(child, self.time_limit));
        let text = read_lossy(&path);
        let mut summary = Summary::read(&text);
        if let Err(reason) = &ended {
            summary.problem = Some(reason.clone());
        }
        Outcome { passed: ended.is_ok_and(|status| status.success()), took: start.elapsed(), summary, job }
    }

    fn log_path(&self, job: &Job) -> PathBuf {
        self.logs.join(format!("{}.log", job.name.replace("::", "-")))
    }

    /// Returns the output of a job, with its command.
    fn log_of(&self, job: &Job) -> String {
        let path = self.log_path(job);
        format!("---- {} ({})\n{:?}\n{}----", job.name, path.display(), job.command(), read_lossy(&path))
    }
}

impl Outcome {
    fn line(&self, number: usize, total: usize) -> String {
        let verdict = if self.passed { "ok    " } else { "FAILED" };
        let job = &self.job;
        let problem = self.summary.problem.as_ref().map(|problem| format!(": {problem}")).unwrap_or_default();
        format!("[{number:>3}/{total}] {verdict} {:36} {:>7} {}{problem}", job.name, show(self.took), self.summary)
    }
}

/// Waits for a job that may start. Returns `None` when all have been taken.
fn take(queue: &Mutex<Queue>, changed: &Condvar) -> Option<Job> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match queue.take() {
            Next::Job(job) => return Some(*job),
            Next::Done => return None,
            Next::Wait => queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

fn start_job(job: &Job, log: &Path) -> Result<Child, String> {
    let failed = |error| format!("cannot write {}: {error}", log.display());
    let output = File::create(log).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    let mut command = job.command();
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))
}

fn wait(mut child: Child, limit: Duration) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("killed after {}", show(limit)));
            }
            Err(error) => return Err(format!("cannot wait for it: {error}")),
        }
    }
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The waiting and running jobs.
#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Job>,
    running: usize,
    busy_groups: BTreeSet<String>,
}

#[derive(Debug)]
enum Next {
    Job(Box<Job>),
    /// Jobs wait, but none may start beside the running ones.
    Wait,
    Done,
}

impl Queue {
    /// Takes the job with the most work behind it: its own, or that of its whole group, which runs sequentially.
    fn take(&mut self) -> Next {
        if self.waiting.is_empty() {
            return Next::Done;
        }
        let may_start = (0..self.waiting.len()).filter(|at| self.may_start(&self.waiting[*at]));
        let Some(at) = may_start.max_by(|a, b| self.weight(*a).total_cmp(&self.weight(*b))) else { return Next::Wait };
        let job = self.waiting.swap_remove(at);
        self.running += 1;
        self.busy_groups.extend(job.group.clone());
        Next::Job(Box::new(job))
    }

    fn finish(&mut self, group: Option<&str>) {
        self.running -= 1;
        group.map(|group| self.busy_groups.remove(group));
    }

    fn may_start(&self, job: &Job) -> bool {
        match job.group.as_deref() {
            // After everything else.
            Some(ALONE) => self.running == 0 && self.waiting.iter().all(|other| other.group.as_deref() == Some(ALONE)),
            Some(group) => !self.busy_groups.contains(group),
            None => true,
        }
    }

    fn weight(&self, at: usize) -> f64 {
        let job = &self.waiting[at];
        match &job.group {
            Some(_) => self.waiting.iter().filter(|other| other.group == job.group).map(|other| other.seconds).sum(),
            None => job.seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

    use super::*;

    fn queue(jobs: &[(&str, f64, Option<&str>)]) -> Queue {
        let waiting = jobs.iter().map(|(name, seconds, group)| Job::for_test(name, *seconds, *group)).collect();
        Queue { waiting, ..Queue::default() }
    }

    fn name(next: Next) -> String {
        match next {
            Next::Job(job) => job.name,
            Next::Wait => "wait".to_owned(),
            Next::Done => "done".to_owned(),
        }
    }

    #[test]
    fn the_longest_comes_first() {
        let mut queue = queue(&[("short", 1.0, None), ("long", 9.0, None), ("middle", 5.0, None)]);
        let order = [(); 4].map(|()| name(queue.take()));
        assert_eq!(order, ["long", "middle", "short", "done"]);
    }

    #[test]
    fn a_group_runs_one_by_one_and_weighs_as_much_as_all_of_it() {
        let mut queue = queue(&[("long", 5.0, None), ("a", 4.0, Some("g")), ("b", 3.0, Some("g"))]);
        assert_eq!(name(queue.take()), "b", "the group takes 7 seconds");
        assert_eq!(name(queue.take()), "long");
        assert_eq!(name(queue.take()), "wait", "a must not run beside b");
        queue.finish(Some("g"));
        assert_eq!(name(queue.take()), "a");
    }

    #[test]
    fn what_runs_alone_runs_when_everything_else_is_done() {
        let mut queue = queue(&[("quiet", 50.0, Some(ALONE)), ("calm", 40.0, Some(ALONE)), ("usual", 1.0, None)]);
        assert_eq!(name(queue.take()), "usual");
        assert_eq!(name(queue.take()), "wait");
        queue.finish(None);
        assert!(["quiet", "calm"].contains(&name(queue.take()).as_str()));
        assert_eq!(name(queue.take()), "wait");
        queue.finish(Some(ALONE));
        assert!(["quiet", "calm"].contains(&name(queue.take()).as_str()));
        queue.finish(Some(ALONE));
        assert_eq!(name(queue.take()), "done");
    }

    /// Shell commands represent tests. Each records when it begins and ends.
    #[test]
    fn every_job_runs_whatever_fails_and_groups_never_overlap() {
        let place = std::env::temp_dir().join(format!("xtask-lanes-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let trace = place.join("trace");
        let script = |name: &str, code: i32| {
            format!("echo begin {name} >> {0}; sleep 0.1; echo end {name} >> {0}; exit {code}", trace.display())
        };
        let jobs = vec![
            Job::for_test(&script("one", 0), 1.0, Some("g")),
            Job::for_test(&script("two", 1), 1.0, Some("g")),
            Job::for_test(&script("three", 0), 1.0, Some("g")),
            Job::for_test("exit 0", 1.0, None),
        ];
        let lanes = Lanes { logs: place.clone(), count: 3, time_limit: Duration::from_secs(60) };
        // The name of such a job is its script, which is not a valid file name.
        let outcomes: Vec<Outcome> = {
            let named = |(at, mut job): (usize, Job)| {
                job.name = format!("job{at}");
                job
            };
            lanes.run(jobs.into_iter().enumerate().map(named).collect(), &Times::read(place.join("times.json")))
        };
        assert_eq!(outcomes.len(), 4);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.passed).count(), 3);
        let lines = fs::read_to_string(&trace).unwrap();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 6);
        for pair in lines.chunks(2) {
            assert_eq!(pair[0].strip_prefix("begin "), pair[1].strip_prefix("end "), "{lines:?}");
        }
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_job_that_hangs_is_killed() {
        let child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(wait(child, Duration::from_millis(50)).unwrap_err().starts_with("killed"));
    }
}
