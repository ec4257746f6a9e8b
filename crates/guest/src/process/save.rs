//! What a checkpoint keeps of the processes. It is taken while all of them are stopped and the gate is closed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use isopod_wire::checkpoint::Connection;
use tokio::time::Instant;

use crate::encoded::Base64;
use crate::process::events::end_event;
use crate::process::outputs::OpenOutput;
use crate::process::saved::{
    SavedEnded, SavedEnding, SavedLeftover, SavedOutput, SavedProcess, SavedProcesses, SavedStreams,
};
use crate::process::terminal::SavedTerminal;
use crate::process::{Ending, Process, Processes, State};
use crate::stdio::Source;

impl Processes {
    /// All descriptors that lead from processes to the guest.
    pub(crate) fn connections(&self) -> io::Result<Vec<Connection>> {
        let mut all = Vec::new();
        for output in self.outputs.open() {
            all.push(output.connection()?);
        }
        for process in self.all_live() {
            all.extend(process.input.connection()?);
        }
        Ok(all)
    }

    /// Takes all output that was printed so far, and returns everything that another guest needs to go on. Nothing changes for
    /// clients.
    pub(crate) fn save(self: &Arc<Self>) -> io::Result<SavedProcesses> {
        self.reap();
        self.deliveries.read_reports();
        let outputs = self.outputs.open();
        outputs.iter().for_each(OpenOutput::drain);
        let live: io::Result<_> = self.all_live().iter().map(|process| save_live(process, &outputs)).collect();
        let ended = self.all_ended();
        let leftovers: io::Result<_> =
            outputs.iter().filter(|output| output.is_leftover(&ended)).map(save_leftover).collect();
        Ok(SavedProcesses {
            live: live?,
            ended: ended.iter().map(|process| save_ended(process)).collect(),
            leftovers: leftovers?,
        })
    }

    /// The oldest first.
    fn all_ended(&self) -> Vec<Arc<Process>> {
        let mut ended: Vec<_> = self.tables().ended.iter().map(Arc::clone).collect();
        ended.reverse();
        ended
    }
}

impl OpenOutput {
    /// Whether the main process has ended. Its pump may not have noticed yet.
    fn is_leftover(&self, ended: &[Arc<Process>]) -> bool {
        let has_ended = |process: &Arc<Process>| ended.iter().any(|other| Arc::ptr_eq(process, other));
        self.source != Source::Pty && self.process.as_ref().is_none_or(has_ended)
    }
}

fn save_live(process: &Arc<Process>, outputs: &[OpenOutput]) -> io::Result<SavedProcess> {
    let remaining = process.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    Ok(SavedProcess {
        pid: process.pid_number(),
        tag: process.tag.clone(),
        config: process.config.clone(),
        streams: save_streams(process, outputs)?,
        output: save_output(&process.state()),
        remaining_ms: remaining.map(milliseconds),
    })
}

fn save_streams(process: &Arc<Process>, outputs: &[OpenOutput]) -> io::Result<SavedStreams> {
    let find = |source| {
        let is_this = |other: &&OpenOutput| other.process.as_ref().is_some_and(|other| Arc::ptr_eq(other, process));
        let found = outputs.iter().filter(is_this).find(|output| output.source == source);
        found.ok_or_else(|| io::Error::other(format!("process {} has lost its output", process.pid_number())))
    };
    if let Some(name) = process.terminal {
        return Ok(SavedStreams::Terminal(SavedTerminal::new(name, find(Source::Pty)?.pipe.fd())?));
    }
    Ok(SavedStreams::Pipes {
        stdin: process.input.save()?,
        stdout: find(Source::Stdout)?.connection()?,
        stderr: find(Source::Stderr)?.connection()?,
    })
}

fn save_ended(process: &Process) -> SavedEnded {
    let state = process.state();
    let ending = match (&state.ending, state.exited) {
        (Some(Ending::Exited(end)), _) => SavedEnding::Exited(end.clone()),
        (Some(Ending::DeadlineExceeded), _) => SavedEnding::DeadlineExceeded,
        // Its pump still waits for a reader.
        (None, Some(status)) => SavedEnding::Exited(end_event(status)),
        (None, None) => SavedEnding::Exited(Default::default()),
    };
    SavedEnded {
        pid: process.pid_number(),
        tag: process.tag.clone(),
        config: process.config.clone(),
        terminal: process.input.is_terminal(),
        output: save_output(&state),
        ending,
    }
}

fn save_output(state: &State) -> Vec<SavedOutput> {
    let undelivered = state.output.undelivered().into_iter();
    undelivered.map(|(source, data)| SavedOutput { source, data: Base64(data) }).collect()
}

fn save_leftover(output: &OpenOutput) -> io::Result<SavedLeftover> {
    Ok(SavedLeftover { pid: output.pid, source: output.source, connection: output.connection()? })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
