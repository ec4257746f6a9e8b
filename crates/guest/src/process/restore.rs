//! Takes over processes from a checkpoint: first makes new connections for them, and registers them once they are there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, WaitStatus};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::connection::ProcessEnd;
use crate::process::input::Input;
use crate::process::output::{CAPACITY, Output};
use crate::process::pump::{Pipe, discard, pump};
use crate::process::saved::{
    SavedEnded, SavedEnding, SavedInput, SavedLeftover, SavedOutput, SavedProcess, SavedProcesses, SavedStreams,
};
use crate::process::start::Streams;
use crate::process::terminal::TerminalEnds;
use crate::process::{Ending, Process, Processes, parse_pid};

/// What a pipe holds unless somebody has changed it.
const PIPE_SIZE: usize = 64 << 10;
/// The longest timeout that is restored; a longer one is as good as none.
const MAX_REMAINING: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Why processes cannot be restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error("the state has an invalid pid: {0}")]
    Pid(u32),
    #[error("cannot make the streams of process {pid}: {source}")]
    Streams { pid: u32, source: io::Error },
}

/// Processes whose connections exist, and which do not exist themselves yet.
#[derive(Debug)]
pub(crate) struct RestoringProcesses {
    live: Vec<Restoring>,
    ended: Vec<SavedEnded>,
    leftovers: Vec<(Pipe, SavedLeftover)>,
}

#[derive(Debug)]
struct Restoring {
    pid: Pid,
    saved: SavedProcess,
    streams: Streams,
    /// It may be killed as soon as it exists.
    exit: oneshot::Receiver<WaitStatus>,
}

impl Processes {
    /// Whether this guest has had no process yet.
    pub(crate) fn is_unused(&self) -> bool {
        let tables = self.tables();
        tables.live.is_empty() && tables.ended.is_empty()
    }

    /// Makes the connections, and adds the processes' ends of them to `ends`.
    pub(crate) fn prepare_restore(
        &self,
        saved: SavedProcesses,
        ends: &mut Vec<ProcessEnd>,
    ) -> Result<RestoringProcesses, RestoreError> {
        let SavedProcesses { live, ended, leftovers } = saved;
        if let Some(ended) = ended.iter().find(|ended| parse_pid(ended.pid).is_none()) {
            return Err(RestoreError::Pid(ended.pid));
        }
        let mut prepared = Vec::new();
        for saved in live {
            prepared.push(self.prepare(saved, ends)?);
        }
        let leftovers: Result<_, _> = leftovers.into_iter().map(|saved| prepare_leftover(saved, ends)).collect();
        Ok(RestoringProcesses { live: prepared, ended, leftovers: leftovers? })
    }

    fn prepare(&self, saved: SavedProcess, ends: &mut Vec<ProcessEnd>) -> Result<Restoring, RestoreError> {
        let pid = parse_pid(saved.pid).filter(|pid| !pid.is_init()).ok_or(RestoreError::Pid(saved.pid))?;
        let streams = restore_streams(&saved.streams, ends);
        let streams = streams.map_err(|source| RestoreError::Streams { pid: saved.pid, source })?;
        Ok(Restoring { pid, saved, streams, exit: self.watch_exit(pid) })
    }

    /// The processes are the guest's children now.
    pub(crate) fn finish_restore(self: &Arc<Self>, restoring: RestoringProcesses) {
        for ended in restoring.ended {
            self.retain_ended(Arc::new(self.restored_ended(ended)));
        }
        for process in restoring.live {
            self.adopt(process);
        }
        for (pipe, SavedLeftover { pid, source, .. }) in restoring.leftovers {
            let log = self.logs.of_process(pid);
            self.outputs.add_leftover(&pipe, source, pid, &log);
            tokio::spawn(discard(pipe, source, log));
        }
    }

    fn adopt(self: &Arc<Self>, restoring: Restoring) {
        let Restoring { pid, saved, streams, mut exit } = restoring;
        let Streams { input, pipes, terminal, .. } = streams;
        let remaining = saved.remaining_ms.map(|ms| Duration::from_millis(ms).min(MAX_REMAINING));
        let deadline = remaining.map(|remaining| Instant::now() + remaining);
        let process = Arc::new(Process {
            terminal,
            deadline,
            ..self.new_process(pid, saved.tag, saved.config, input, restored_output(saved.output))
        });
        self.outputs.add(&process, &pipes);
        let exited = self.insert(Arc::clone(&process), self.proc_overrides.begin());
        tokio::spawn(pump(process, pipes, exited, self.gate.clone()));
        if let Ok(status) = exit.try_recv() {
            self.exited(pid, status);
        }
    }

    fn restored_ended(&self, saved: SavedEnded) -> Process {
        // `prepare_restore` has checked the pid.
        let pid = parse_pid(saved.pid).unwrap_or(Pid::INIT);
        let input = Input::ended(saved.terminal);
        let process = self.new_process(pid, saved.tag, saved.config, input, restored_output(saved.output));
        process.finish(match saved.ending {
            SavedEnding::Exited(end) => Ending::Exited(end),
            SavedEnding::DeadlineExceeded => Ending::DeadlineExceeded,
        });
        process
    }
}

fn restored_output(saved: Vec<SavedOutput>) -> Output {
    Output::restored(CAPACITY, saved.into_iter().map(|piece| (piece.source, piece.data.0)))
}

fn restore_streams(saved: &SavedStreams, ends: &mut Vec<ProcessEnd>) -> io::Result<Streams> {
    let (streams, connections) = match saved {
        SavedStreams::Terminal(saved) => {
            let streams = Streams::of_terminal(TerminalEnds::restore(saved)?)?;
            (streams, [Some(saved.connection), None, None])
        }
        SavedStreams::Pipes { stdin, stdout, stderr } => {
            let streams = Streams::pipes(stdin.is_some())?;
            if let Some(stdin) = stdin {
                put_back(&streams, stdin)?;
            }
            (streams, [stdin.as_ref().map(|stdin| stdin.connection), Some(*stdout), Some(*stderr)])
        }
    };
    for (connection, descriptor) in connections.into_iter().zip(&streams.child) {
        ends.extend(connection.map(|connection| ProcessEnd { connection, descriptor: Arc::clone(descriptor) }));
    }
    Ok(streams)
}

/// Writes what the process had not read of its standard input.
fn put_back(streams: &Streams, stdin: &SavedInput) -> io::Result<()> {
    let unread = &stdin.unread.0;
    if unread.len() > PIPE_SIZE {
        fcntl_setpipe_size(&streams.child[0], unread.len())?;
    }
    streams.input.put_back(unread)
}

fn prepare_leftover(saved: SavedLeftover, ends: &mut Vec<ProcessEnd>) -> Result<(Pipe, SavedLeftover), RestoreError> {
    let failed = |source| RestoreError::Streams { pid: saved.pid, source };
    let (pipe, descriptor) = Streams::output_pipe().map_err(failed)?;
    ends.push(ProcessEnd { connection: saved.connection, descriptor });
    Ok((pipe, saved))
}
