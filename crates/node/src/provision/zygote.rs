//! Starts the zygote of a template, which is prepared and launched like a sandbox.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use isopod_isolation::launch::{Launch, Launched, read_failure, zygote_pair};
use isopod_isolation::raise_inotify_limits;
use isopod_wire::{ExecutionId, Limits};

use super::{LayerSource, PreparedSandbox, ProvisionError, Provisioner, Purpose};
use crate::boot::ProcessIdentity;
use crate::disposal::{Remains, dispose};
use crate::record::{Record, random_execution_id};
use crate::template::Template;
use crate::zygote::{self, Zygote};

impl Provisioner {
    /// Starts a zygote on a template and waits until it is warm. Calls `on_end` once, when it is gone.
    pub(crate) fn start_zygote(
        &self,
        template: &Arc<Template>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Zygote>, ProvisionError> {
        raise_inotify_limits();
        let prepared = self.prepare_zygote(random_execution_id(), template, &zygote::limits())?;
        let remains = Remains::of(&prepared.record, &self.home);
        self.launch_zygote(prepared, on_end).inspect_err(|_| dispose(&self.host, &remains))
    }

    fn launch_zygote(
        &self,
        prepared: PreparedSandbox,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<Zygote>, ProvisionError> {
        let (slot, directory, mut record) = (prepared.slot, prepared.directory.clone(), prepared.record.clone());
        let (ours, theirs) = zygote_pair().map_err(ProvisionError::Guest)?;
        let launched = launch_zygote_program(prepared, theirs.as_fd())?;
        record.init = Some(ProcessIdentity::of(launched.pid).map_err(ProvisionError::Guest)?);
        record.save(&directory).map_err(ProvisionError::Record)?;
        drop(theirs);
        let remains = Remains::of(&record, &self.home);
        Zygote::connect(&self.host, remains, slot, ours, on_end).map_err(ProvisionError::Guest)
    }

    /// Prepares a zygote, which has everything that a sandbox has except a network.
    fn prepare_zygote(
        &self,
        execution: ExecutionId,
        template: &Arc<Template>,
        limits: &Limits,
    ) -> Result<PreparedSandbox, ProvisionError> {
        let mut record = Record::new(execution, &template.name, template.generation(), *limits);
        record.area = Some(record.execution.as_str().to_owned());
        record.is_zygote = true;
        let remains = Remains::of(&record, &self.home);
        let prepared = self.prepare_steps(record, template, limits, LayerSource::New, Purpose::Zygote, None);
        prepared.inspect_err(|_| dispose(&self.host, &remains))
    }
}

/// Starts a zygote's program, which serves the given socket.
fn launch_zygote_program(prepared: PreparedSandbox, socket: BorrowedFd<'_>) -> Result<Launched, ProvisionError> {
    let launch = Launch {
        listener: socket,
        interpreter: None,
        stat_files: None,
        proc_overrides: None,
        cpus: None,
        tmpfs_bytes: None,
    };
    let launched = prepared.launcher.launch(&launch)?;
    // The pipe is closed when the program starts. Anything written to it is an error.
    let mut text = [0; 512];
    match rustix::io::read(&launched.ready, &mut text).map_err(|error| ProvisionError::Guest(error.into()))? {
        0 => Ok(launched),
        length => Err(read_failure(&text[..length]).into()),
    }
}
