//! The daemon's state, shared by all requests.

use std::sync::{Arc, Mutex, PoisonError};

use crate::figures::Figures;
use crate::fs::Watchers;
use crate::interpreter::Interpreter;
use crate::logs::Logs;
use crate::metrics::Meters;
use crate::process::Processes;
use crate::settings::Settings;

/// One sandbox, seen from inside.
#[derive(Debug)]
pub(crate) struct Guest {
    /// None until the host has called `/init`. Written by `/init`, read by everyone.
    settings: Mutex<Option<Arc<Settings>>>,
    pub(crate) processes: Arc<Processes>,
    /// What processes printed, for the host.
    pub(crate) logs: Arc<Logs>,
    pub(crate) watchers: Watchers,
    pub(crate) meters: Meters,
    pub(crate) figures: Figures,
    /// None in a sandbox whose template has no interpreter.
    pub(crate) interpreter: Option<Interpreter>,
}

impl Guest {
    pub(crate) fn new(meters: Meters, interpreter: Option<Interpreter>) -> Self {
        Self {
            settings: Mutex::new(None),
            processes: Arc::new(Processes::default()),
            logs: Arc::default(),
            watchers: Watchers::default(),
            meters,
            figures: Figures::default(),
            interpreter,
        }
    }

    /// How much runs now that a client started: processes and code.
    pub(crate) fn busy(&self) -> usize {
        self.processes.live_count() + self.interpreter.as_ref().map_or(0, Interpreter::running)
    }

    pub(crate) fn settings(&self) -> Option<Arc<Settings>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_settings(&self, settings: Settings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(settings));
    }
}
