//! Processes that clients started: who they are, what they printed, how they ended.
//!
//! A process is *live* from its start until its exit was collected, then *ended* for a while so that late clients can
//! still read the rest of its output and its result. Only live ones are listed, signalled and written to, so a pid
//! that the kernel has given to someone else is never meant.

mod control;
mod events;
mod input;
mod output;
mod pump;
mod start;
mod stream;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use isopod_wire::rpc::process::process_event::EndEvent;
use isopod_wire::rpc::process::process_selector::Selector;
use isopod_wire::rpc::process::{ProcessConfig, ProcessSelector};
use rustix::process::{Pid, Signal, WaitStatus};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub(crate) use control::{close_stdin, list, send_signal, update};
pub(crate) use input::{send_input, stream_input};
pub(crate) use output::Source;
pub(crate) use start::{basic_environment, start};
pub(crate) use stream::connect;

use crate::logs::ProcessLog;
use crate::process::input::Input;
use crate::process::output::Output;
use crate::rpc::{Code, RpcError};

/// How long an ended process can still be connected to.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// How many ended processes are kept, and how much of their unread output in all.
const KEPT_COUNT: usize = 1000;
const KEPT_BYTES: usize = 16 << 20;

/// One process that a client started.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    tag: Option<String>,
    config: ProcessConfig,
    input: Input,
    /// Where its output goes besides its readers.
    log: Arc<ProcessLog>,
    state: Mutex<State>,
    /// Wakes readers: there is new output or the end.
    changed: Notify,
    /// Wakes the pump: a reader took something or left.
    room: Notify,
}

#[derive(Debug)]
struct State {
    output: Output,
    ending: Option<Ending>,
}

/// Why no more output will come.
#[derive(Clone, Debug)]
enum Ending {
    Exited(EndEvent),
    DeadlineExceeded,
}

impl Process {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pid_number(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    fn finish(&self, ending: Ending) {
        let mut state = self.state();
        state.ending.get_or_insert(ending);
        state.output.shrink();
        drop(state);
        self.changed.notify_waiters();
        self.input.close_now();
    }

    /// Signals the process and everything that stayed in its group.
    fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        rustix::process::kill_process_group(self.pid, signal)
    }
}

struct Live {
    process: Arc<Process>,
    exit: oneshot::Sender<WaitStatus>,
}

#[derive(Default)]
struct Tables {
    live: HashMap<Pid, Live>,
    ended: VecDeque<(Instant, Arc<Process>)>,
    /// Children that no client knows, and who waits for their exits.
    watched: HashMap<Pid, oneshot::Sender<WaitStatus>>,
    /// Whether [`forget_ended`] runs.
    janitor: bool,
}

/// All processes that clients know.
#[derive(Default)]
pub(crate) struct Processes {
    tables: Mutex<Tables>,
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Processes").field("live", &self.tables().live.len()).finish_non_exhaustive()
    }
}

impl Processes {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a process that was just started. The receiver gets its exit status.
    fn insert(&self, process: Arc<Process>) -> oneshot::Receiver<WaitStatus> {
        let (exit, exited) = oneshot::channel();
        self.tables().live.insert(process.pid, Live { process, exit });
        exited
    }

    /// Collects every child that has exited, ours and (as pid 1) those that lost their parents.
    ///
    /// Starting and collecting happen on the same thread, so no exit can be collected before its process is entered.
    pub(crate) fn collect(self: &Arc<Self>) {
        while let Ok(Some((pid, status))) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            let Some(live) = self.tables().live.remove(&pid) else {
                self.tables().tell(pid, status);
                continue;
            };
            self.keep(live.process);
            let _ = live.exit.send(status);
        }
    }

    /// Tells the exit of a child that no client knows, if it is ours to collect.
    pub(crate) fn watch(&self, pid: Pid) -> oneshot::Receiver<WaitStatus> {
        let (exit, exited) = oneshot::channel();
        let watched = &mut self.tables().watched;
        watched.retain(|_, waiting| !waiting.is_closed());
        watched.insert(pid, exit);
        exited
    }

    fn keep(self: &Arc<Self>, process: Arc<Process>) {
        let mut tables = self.tables();
        tables.ended.push_back((Instant::now(), process));
        tables.trim();
        if !tables.janitor {
            tables.janitor = true;
            tokio::spawn(forget_ended(Arc::clone(self)));
        }
    }

    fn live(&self, selector: &ProcessSelector) -> Result<Arc<Process>, RpcError> {
        let tables = self.tables();
        let found = match wanted(selector)? {
            Selector::Pid(pid) => parse_pid(*pid).and_then(|pid| tables.live.get(&pid)),
            Selector::Tag(tag) => tables.live.values().find(|live| live.process.tag.as_ref() == Some(tag)),
        };
        found.map(|live| Arc::clone(&live.process)).ok_or_else(|| not_found(selector))
    }

    /// Also finds processes that ended a short while ago.
    fn live_or_ended(&self, selector: &ProcessSelector) -> Result<Arc<Process>, RpcError> {
        if let Ok(found) = self.live(selector) {
            return Ok(found);
        }
        let selected = wanted(selector)?;
        let tables = self.tables();
        let found = tables.ended.iter().rev().find(|(_, process)| match selected {
            Selector::Pid(pid) => process.pid_number() == *pid,
            Selector::Tag(tag) => process.tag.as_ref() == Some(tag),
        });
        found.map(|(_, process)| Arc::clone(process)).ok_or_else(|| not_found(selector))
    }

    /// How many processes run.
    pub(crate) fn live_count(&self) -> usize {
        self.tables().live.len()
    }

    fn all_live(&self) -> Vec<Arc<Process>> {
        let mut all: Vec<_> = self.tables().live.values().map(|live| Arc::clone(&live.process)).collect();
        all.sort_by_key(|process| process.pid_number());
        all
    }
}

impl Tables {
    fn tell(&mut self, pid: Pid, status: WaitStatus) {
        if let Some(waiting) = self.watched.remove(&pid) {
            let _ = waiting.send(status);
        }
    }

    fn trim(&mut self) {
        let mut bytes: usize = self.ended.iter().map(|(_, process)| process.state().output.len()).sum();
        while let Some((since, process)) = self.ended.front() {
            if since.elapsed() < KEPT_FOR && self.ended.len() <= KEPT_COUNT && bytes <= KEPT_BYTES {
                break;
            }
            bytes -= process.state().output.len();
            self.ended.pop_front();
        }
    }
}

/// Runs while ended processes are kept and lets go of the old ones.
async fn forget_ended(processes: Arc<Processes>) {
    loop {
        tokio::time::sleep(KEPT_FOR / 6).await;
        let mut tables = processes.tables();
        tables.trim();
        if tables.ended.is_empty() {
            tables.janitor = false;
            return;
        }
    }
}

fn wanted(selector: &ProcessSelector) -> Result<&Selector, RpcError> {
    selector.selector.as_ref().ok_or_else(|| RpcError::new(Code::InvalidArgument, "process selector is empty"))
}

fn parse_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().filter(|pid| *pid > 0).and_then(Pid::from_raw)
}

fn not_found(selector: &ProcessSelector) -> RpcError {
    let message = match &selector.selector {
        Some(Selector::Pid(pid)) => format!("process with pid {pid} not found"),
        Some(Selector::Tag(tag)) => format!("process with tag {tag} not found"),
        None => "process not found".to_owned(),
    };
    RpcError::new(Code::NotFound, message)
}
