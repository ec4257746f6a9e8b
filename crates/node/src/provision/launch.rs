//! Launches a prepared sandbox: its first process becomes the guest, and its interpreter enters.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use isopod_isolation::cgroup::SandboxCgroup;
use isopod_isolation::launch::{Interpreter, Launch, ProcOverrides, read_failure, zygote_pair};
use isopod_wire::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{PreparedSandbox, ProvisionError, Provisioner, ReadySandbox, tmpfs_bytes};
use crate::boot::ProcessIdentity;
use crate::disposal::{Remains, dispose};
use crate::slot::Slot;
use crate::zygote::{Entering, Zygote};

/// How long the guest may take to listen.
const GUEST_DEADLINE: Duration = Duration::from_secs(15);

impl Provisioner {
    /// Starts the first process and waits until the guest listens. On an error, nothing is left.
    pub(crate) fn launch(&self, prepared: PreparedSandbox, limits: &Limits) -> Result<ReadySandbox, ProvisionError> {
        let remains = Remains::of(&prepared.record, &self.home);
        self.launch_steps(prepared, limits).inspect_err(|_| dispose(&self.host, &remains))
    }

    fn launch_steps(&self, prepared: PreparedSandbox, limits: &Limits) -> Result<ReadySandbox, ProvisionError> {
        let PreparedSandbox {
            mut record,
            template,
            zygote,
            image,
            directory,
            slot,
            cgroup,
            network,
            listener,
            stat_files,
            launcher,
        } = prepared;
        let zygote = zygote.filter(|zygote| zygote.is_alive());
        let changed = (record.limits != *limits).then(|| ProcOverrides::for_limits(limits));
        if changed.is_some() {
            cgroup.set_limits(limits)?;
            record.limits = *limits;
        }
        let forkserver_pair = zygote.as_ref().map(|_| zygote_pair()).transpose().map_err(ProvisionError::Socket)?;
        let forkserver = forkserver_pair.as_ref().map(|(guest_end, _)| guest_end.as_fd());
        let launched = launcher.launch(&Launch {
            listener: listener.as_fd(),
            interpreter: template.interpreter().map(|_| Interpreter { forkserver }),
            stat_files: stat_files.as_ref(),
            proc_overrides: changed.as_ref(),
            cpus: cpus_for(slot, limits),
            tmpfs_bytes: changed.is_some().then(|| tmpfs_bytes(limits)),
        })?;
        // It is saved once the sandbox has an owner. Without an owner, a sandbox is not adopted but removed by its
        // cgroups.
        record.init = Some(ProcessIdentity::of(launched.pid).map_err(ProvisionError::Guest)?);
        let entering = match (&zygote, &forkserver_pair) {
            (Some(zygote), Some((_, forkserver_end))) => begin_entering(zygote, launched.pid, forkserver_end, &cgroup),
            _ => None,
        };
        drop(forkserver_pair);
        wait_until_ready(&launched.ready)?;
        if let Some(entering) = entering {
            entering.check(slot.first_id())?;
        }
        Ok(ReadySandbox { record, template, image, directory, slot, cgroup, network, pidfd: launched.pidfd })
    }
}

/// The CPUs for a sandbox that has fewer than the host. Neighbouring slots are spread over all CPUs.
fn cpus_for(slot: Slot, limits: &Limits) -> Option<Vec<u32>> {
    let all = u32::try_from(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)).unwrap_or(1);
    let wanted = limits.whole_cpus();
    (wanted < all).then(|| (0..wanted).map(|index| (slot.0 * wanted + index) % all).collect())
}

/// Requests an interpreter and admits it. If none comes, the guest notices and starts its own.
fn begin_entering(zygote: &Zygote, init: u32, forkserver: &OwnedFd, cgroup: &SandboxCgroup) -> Option<Entering> {
    let entering = zygote.enter(init, forkserver).inspect_err(|error| {
        tracing::warn!(error = error as &dyn std::error::Error, "the zygote does not reply");
    });
    let entering = entering.ok()?;
    match entering.let_in(cgroup) {
        Ok(()) => Some(entering),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "an interpreter could not enter its sandbox");
            None
        }
    }
}

fn wait_until_ready(ready: &OwnedFd) -> Result<(), ProvisionError> {
    let deadline = Timespec { tv_sec: GUEST_DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
    let mut fds = [PollFd::new(ready, PollFlags::IN)];
    if poll(&mut fds, Some(&deadline)).map_err(|error| ProvisionError::Guest(error.into()))? == 0 {
        return Err(ProvisionError::Guest(io::ErrorKind::TimedOut.into()));
    }
    let mut text = [0; 512];
    match rustix::io::read(ready, &mut text).map_err(|error| ProvisionError::Guest(error.into()))? {
        1 if text[0] == b'1' => Ok(()),
        length => Err(read_failure(&text[..length]).into()),
    }
}
