//! The `process.Process` service: the processes that clients started, their output and their results.
//!
//! A process is *live* from its start until the guest has reaped it. Then it is *ended* for a while, so that late clients can
//! still read the rest of its output and its result. Only live processes are listed, signalled and written to, so a client
//! never reaches a process that got a reused pid.

mod control;
mod delivery;
mod ended;
mod events;
mod input;
mod output;
mod outputs;
mod pump;
mod restore;
mod save;
mod saved;
mod start;
mod stream;
mod terminal;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use isopod_wire::rpc::process::process_event::EndEvent;
use isopod_wire::rpc::process::process_selector::Selector;
use isopod_wire::rpc::process::{ProcessConfig, ProcessSelector};
use rustix::process::{Pid, Signal, WaitStatus};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub(crate) use control::{close_stdin, list, send_signal, update};
pub(crate) use delivery::open_channel;
pub(crate) use input::{send_input, stream_input};
pub(crate) use restore::{RestoreError, RestoringProcesses};
pub(crate) use saved::SavedProcesses;
pub(crate) use start::start;
pub(crate) use stream::connect;

use crate::gate::Gate;
use crate::logs::{Logs, ProcessLog};
use crate::proc_overrides::{Activity, ProcOverrides};
use crate::process::delivery::Deliveries;
use crate::process::ended::{Ended, ROUND};
use crate::process::input::Input;
use crate::process::output::Output;
use crate::process::outputs::Outputs;
use crate::process::terminal::TerminalName;
use crate::rpc::{Code, RpcError};

/// How long a killed process and its group may take to disappear before the guest continues without that.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest pause between two looks at a killed group.
const MAX_KILL_PAUSE: Duration = Duration::from_millis(50);

/// One process that a client started.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    tag: Option<String>,
    config: ProcessConfig,
    input: Input,
    /// None if its standard streams are pipes.
    terminal: Option<TerminalName>,
    /// When it is killed.
    deadline: Option<Instant>,
    /// Gets the output too, in addition to the readers.
    log: Arc<ProcessLog>,
    state: Mutex<State>,
    /// Wakes readers when there is new output or the process has ended.
    changed: Notify,
    /// Wakes the pump when a reader has read something or left.
    room: Notify,
}

#[derive(Debug)]
struct State {
    output: Output,
    /// Set when the guest has reaped it.
    exited: Option<WaitStatus>,
    ending: Option<Ending>,
}

/// How the output ended.
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

    /// Signals the process and every process in its group.
    fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        rustix::process::kill_process_group(self.pid, signal)
    }

    /// Kills the process and its group, and what runs in front of its terminal: an interactive shell gives each job a group of
    /// its own. Waits until no process of the groups exists any more, not even as a zombie. What is stuck in the kernel, or
    /// what its own parent does not reap, is waited for only for a while.
    async fn kill(&self) -> rustix::io::Result<()> {
        let in_front = self.input.foreground().filter(|group| *group != self.pid);
        self.signal(Signal::KILL)?;
        if let Some(group) = in_front {
            // It may have ended with the shell.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let exists = |group: Pid| rustix::process::test_kill_process_group(group).is_ok();
        let gone = async {
            // The kernel has no event for the end of a group. Almost all are gone at the first or second look.
            let mut pause = Duration::from_millis(1);
            while exists(self.pid) || in_front.is_some_and(exists) {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_KILL_PAUSE);
            }
        };
        let _ = tokio::time::timeout(KILL_TIMEOUT, gone).await;
        Ok(())
    }
}

struct Live {
    process: Arc<Process>,
    exit: oneshot::Sender<WaitStatus>,
    /// Keeps the files over `/proc` fresh while the process runs.
    activity: Activity,
}

struct Tables {
    live: HashMap<Pid, Live>,
    ended: Ended<Arc<Process>>,
    /// Children that are not clients' processes, and who waits for their exit.
    watched: HashMap<Pid, oneshot::Sender<WaitStatus>>,
    /// Whether [`forget_ended`] runs.
    forgetting: bool,
}

/// All processes of clients.
pub(crate) struct Processes {
    tables: Mutex<Tables>,
    /// Where the guest reads output.
    outputs: Outputs,
    /// How much output clients have received.
    deliveries: Arc<Deliveries>,
    /// The log that new processes write to.
    logs: Arc<Logs>,
    proc_overrides: Arc<ProcOverrides>,
    gate: Gate,
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Processes").field("live", &self.tables().live.len()).finish_non_exhaustive()
    }
}

impl Processes {
    pub(crate) fn new(logs: Arc<Logs>, proc_overrides: Arc<ProcOverrides>, gate: Gate) -> Self {
        Self {
            tables: Mutex::new(Tables::new()),
            outputs: Outputs::default(),
            deliveries: Arc::default(),
            logs,
            proc_overrides,
            gate,
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process that is in no table yet.
    fn new_process(
        &self,
        pid: Pid,
        tag: Option<String>,
        config: ProcessConfig,
        input: Input,
        output: Output,
    ) -> Process {
        Process {
            pid,
            tag,
            config,
            input,
            terminal: None,
            deadline: None,
            log: self.logs.of_process(pid.as_raw_nonzero().get().unsigned_abs()),
            state: Mutex::new(State { output, exited: None, ending: None }),
            changed: Notify::new(),
            room: Notify::new(),
        }
    }

    /// Adds a process that has just been started. The receiver gets its exit status.
    fn insert(&self, process: Arc<Process>, activity: Activity) -> oneshot::Receiver<WaitStatus> {
        let (exit, exited) = oneshot::channel();
        self.tables().live.insert(process.pid, Live { process, exit, activity });
        exited
    }

    /// Reaps every child that has exited: our own and, as pid 1, orphans.
    ///
    /// Processes are started and reaped on the same thread, so none is reaped before it is in the table.
    pub(crate) fn reap(self: &Arc<Self>) {
        while let Ok(Some((pid, status))) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            self.exited(pid, status);
        }
    }

    fn exited(self: &Arc<Self>, pid: Pid, status: WaitStatus) {
        let Some(live) = self.tables().live.remove(&pid) else {
            self.tables().notify_exit(pid, status);
            return;
        };
        let Live { process, exit, activity } = live;
        drop(activity);
        process.state().exited = Some(status);
        self.retain_ended(process);
        let _ = exit.send(status);
    }

    /// Reports the exit of a child that is not a client's process, if the guest reaps it.
    pub(crate) fn watch_exit(&self, pid: Pid) -> oneshot::Receiver<WaitStatus> {
        let (exit, exited) = oneshot::channel();
        let watched = &mut self.tables().watched;
        watched.retain(|_, waiting| !waiting.is_closed());
        watched.insert(pid, exit);
        exited
    }

    fn retain_ended(self: &Arc<Self>, process: Arc<Process>) {
        let mut tables = self.tables();
        tables.ended.add(process);
        if !tables.forgetting {
            tables.forgetting = true;
            tokio::spawn(forget_ended(Arc::clone(self)));
        }
    }

    fn live(&self, selector: &ProcessSelector) -> Result<Arc<Process>, RpcError> {
        let tables = self.tables();
        let found = match require_selector(selector)? {
            Selector::Pid(pid) => parse_pid(*pid).and_then(|pid| tables.live.get(&pid)),
            Selector::Tag(tag) => tables.live.values().find(|live| live.process.tag.as_ref() == Some(tag)),
        };
        found.map(|live| Arc::clone(&live.process)).ok_or_else(|| not_found(selector))
    }

    /// Also finds processes that have ended, as long as they are kept.
    fn live_or_ended(&self, selector: &ProcessSelector) -> Result<Arc<Process>, RpcError> {
        if let Ok(found) = self.live(selector) {
            return Ok(found);
        }
        let selected = require_selector(selector)?;
        let tables = self.tables();
        let found = tables.ended.iter().find(|process| match selected {
            Selector::Pid(pid) => process.pid_number() == *pid,
            Selector::Tag(tag) => process.tag.as_ref() == Some(tag),
        });
        found.map(Arc::clone).ok_or_else(|| not_found(selector))
    }

    fn all_live(&self) -> Vec<Arc<Process>> {
        let mut all: Vec<_> = self.tables().live.values().map(|live| Arc::clone(&live.process)).collect();
        all.sort_by_key(|process| process.pid_number());
        all
    }
}

impl Tables {
    fn new() -> Self {
        let ended = Ended::new(|process: &Arc<Process>| process.state().output.len());
        Self { live: HashMap::new(), ended, watched: HashMap::new(), forgetting: false }
    }

    fn notify_exit(&mut self, pid: Pid, status: WaitStatus) {
        if let Some(waiting) = self.watched.remove(&pid) {
            let _ = waiting.send(status);
        }
    }
}

/// Forgets ended processes, round by round, until none is left.
async fn forget_ended(processes: Arc<Processes>) {
    loop {
        tokio::time::sleep(ROUND).await;
        let mut tables = processes.tables();
        tables.ended.next_round();
        if tables.ended.is_empty() {
            tables.forgetting = false;
            return;
        }
    }
}

fn require_selector(selector: &ProcessSelector) -> Result<&Selector, RpcError> {
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
