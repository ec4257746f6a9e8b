//! Finishes what a server left undone that died while it saved a sandbox: its processes are stopped, and CRIU may still be at
//! work on them.

use std::sync::Arc;

use isopod_checkpoint::{go_on, wait_until_untraced};
use isopod_guest_client::Connector;
use isopod_guest_client::checkpoint::Checkpoint;
use isopod_wire::node::NodeState;
use rustix::process::{Pid, Signal, kill_process};

use super::pause::save;
use super::save_memory::remove;
use super::{Sandbox, Sandboxes};

impl Sandboxes {
    /// Lets the processes of an adopted sandbox go on, in the background. Whoever uses the sandbox meanwhile waits.
    pub(super) fn finish_save(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        let sandbox = Arc::clone(sandbox);
        tokio::spawn(async move {
            let mut inner = sandbox.inner.lock().await;
            let (Some(processes), Some(init)) = (&inner.processes, &inner.record.init) else { return };
            tracing::info!(incarnation = %sandbox.incarnation, "an earlier server died while it saved a sandbox; letting it go on");
            let (cgroup, init) = (processes.cgroup.clone(), init.pid);
            let is_paused = inner.state() != NodeState::Running;
            let guest = processes.socket.try_clone().map(|socket| Checkpoint::over(Connector::open_unix(socket)));
            let waiting = cgroup.clone();
            let _ = tokio::task::spawn_blocking(move || wait_until_untraced(&waiting)).await;
            // On a host without a freezer it was never frozen. A guest that holds nothing refuses, and a hold ends by itself.
            let _ = cgroup.thaw();
            if let Some(guest) = Pid::from_raw(init.cast_signed()) {
                // It may have ended.
                let _ = kill_process(guest, Signal::CONT);
            }
            if let Ok(guest) = guest {
                let _ = guest.release().await;
            }
            go_on(&cgroup, init, std::mem::take(&mut inner.record.stopped_before_saving));
            if is_paused && let Err(error) = cgroup.freeze() {
                tracing::warn!(incarnation = %sandbox.incarnation, %error, "cannot freeze a paused sandbox again");
            }
            remove(&sandbox.directory).await;
            inner.record.saving = false;
            let _ = save(&sandbox, &inner, "finish saving");
        });
    }
}
