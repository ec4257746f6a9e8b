//! The daemon's state, shared by all requests.

use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::fs::Watchers;
use crate::gate::Gate;
use crate::interpreter::{Interpreter, Programs};
use crate::logs::Logs;
use crate::metrics::Meters;
use crate::proc_overrides::ProcOverrides;
use crate::process::Processes;
use crate::settings::CurrentSettings;

/// The state of one sandbox.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) settings: Arc<CurrentSettings>,
    pub(crate) processes: Arc<Processes>,
    /// What processes printed, for the host.
    pub(crate) logs: Arc<Logs>,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) meters: Arc<Meters>,
    /// None in a sandbox whose template has no interpreter.
    pub(crate) interpreter: Option<Arc<Interpreter>>,
    pub(crate) checkpoint: Checkpoint,
}

impl Guest {
    /// The state of a sandbox; without `programs` it has no interpreter.
    pub(crate) fn new(meters: Meters, programs: Option<Programs>) -> Self {
        let (settings, logs, meters) = (Arc::<CurrentSettings>::default(), Arc::<Logs>::default(), Arc::new(meters));
        let proc_overrides = Arc::new(ProcOverrides::new(Arc::clone(&meters)));
        let (gate, watchers) = (Gate::default(), Arc::<Watchers>::default());
        let processes = Arc::new(Processes::new(Arc::clone(&logs), Arc::clone(&proc_overrides), gate.clone()));
        let interpreter = programs
            .map(|programs| {
                let (settings, processes) = (Arc::clone(&settings), Arc::clone(&processes));
                Interpreter::new(programs, settings, processes, proc_overrides, gate.clone())
            })
            .map(Arc::new);
        let (checked, log) = (Arc::clone(&processes), Arc::clone(&logs));
        let checkpoint = Checkpoint::new(gate, checked, interpreter.clone(), Arc::clone(&watchers), log);
        Self { settings, processes, logs, watchers, meters, interpreter, checkpoint }
    }
}
