//! Saves paused sandboxes before their time: some when the host runs short of memory, all when it shuts down.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isopod_wire::Bytes;
use isopod_wire::node::{Incarnation, NodeState, NotSaved};

use super::{Sandbox, Sandboxes};

/// How often the host's memory is looked at.
const CHECK: Duration = Duration::from_secs(2);

/// A pause of a sandbox: which execution, and its number.
type Pause = (Incarnation, u64);

impl Sandboxes {
    /// Keeps this much of the host's memory free, as far as paused sandboxes have it.
    pub(crate) fn keep_memory_free(self: &Arc<Self>, wanted: Bytes) {
        if wanted.0 == 0 || !self.criu.is_usable() {
            return;
        }
        let sandboxes = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut refused = HashSet::new();
            loop {
                tokio::time::sleep(CHECK).await;
                let Some(sandboxes) = sandboxes.upgrade() else { return };
                sandboxes.save_while_short(wanted, &mut refused).await;
            }
        });
    }

    /// Saves the memory of all paused sandboxes that still have it in RAM. Returns those that could not be saved.
    pub(crate) async fn save_all_paused(self: &Arc<Self>) -> Vec<NotSaved> {
        if let Err(reason) = self.criu.get() {
            let not_saved = |(sandbox, _): (Arc<Sandbox>, u64)| NotSaved {
                incarnation: sandbox.incarnation.clone(),
                reason: reason.clone(),
            };
            return self.frozen().await.into_iter().map(not_saved).collect();
        }
        // All of them: one that is being changed or saved now is waited for.
        let all: Vec<Incarnation> = self.by_id().values().map(|sandbox| sandbox.incarnation.clone()).collect();
        let mut saving = tokio::task::JoinSet::new();
        for incarnation in all {
            let sandboxes = Arc::clone(self);
            saving.spawn(async move {
                let reason = sandboxes.save_in_turn(&incarnation).await.err()?;
                Some(NotSaved { incarnation, reason })
            });
        }
        saving.join_all().await.into_iter().flatten().collect()
    }

    /// Ends the processes of all sandboxes, because the host shuts down: its service manager would wait for them, and they take
    /// no signals from outside. Their records stay, by which the next server tells why they ended. Returns how many there were.
    pub(crate) async fn end_with_host(&self) -> usize {
        let all: Vec<Arc<Sandbox>> = self.by_id().values().cloned().collect();
        let mut ended = 0;
        for sandbox in all {
            let mut inner = sandbox.inner.lock().await;
            let Some(processes) = inner.processes.take() else { continue };
            // Nobody removes what is kept for the next server.
            inner.ending = true;
            ended += 1;
            let killed = tokio::task::spawn_blocking(move || processes.cgroup.kill()).await;
            if let Ok(Err(error)) = killed {
                tracing::warn!(incarnation = %sandbox.incarnation, %error, "could not end a sandbox before the host shuts down");
            }
        }
        ended
    }

    /// The largest first, because fewer have to be restored then. `refused` are pauses that could not be saved.
    async fn save_while_short(&self, wanted: Bytes, refused: &mut HashSet<Pause>) {
        while available_memory().is_some_and(|available| available < wanted.0) {
            let pause_of = |sandbox: &Sandbox| (sandbox.incarnation.clone(), sandbox.pauses.load(Ordering::Relaxed));
            let mut frozen = self.frozen().await;
            frozen.retain(|(sandbox, _)| !refused.contains(&pause_of(sandbox)));
            let Some((largest, _)) = frozen.into_iter().max_by_key(|(_, memory)| *memory) else { return };
            if self.save_in_turn(&largest.incarnation).await.is_err() {
                refused.insert(pause_of(&largest));
            }
        }
        let exists = |(incarnation, pause): &Pause| {
            self.find(incarnation).is_some_and(|sandbox| sandbox.pauses.load(Ordering::Relaxed) == *pause)
        };
        refused.retain(exists);
    }

    /// Paused sandboxes whose memory is in RAM, with its size.
    async fn frozen(&self) -> Vec<(Arc<Sandbox>, u64)> {
        let all: Vec<Arc<Sandbox>> = self.by_id().values().cloned().collect();
        let mut frozen = Vec::new();
        for sandbox in all {
            // One that is being changed is looked at the next time.
            let Ok(inner) = sandbox.inner.try_lock() else { continue };
            let (NodeState::Frozen, Some(processes)) = (inner.state(), &inner.processes) else { continue };
            let memory = processes.cgroup.usage().map_or(0, |usage| usage.memory);
            drop(inner);
            frozen.push((sandbox, memory));
        }
        frozen
    }
}

/// What programs could still get, in bytes. `None` if the kernel does not tell.
fn available_memory() -> Option<u64> {
    available_in(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_is_available() {
        assert_eq!(available_in("MemTotal: 100 kB\nMemAvailable:      12 kB\n"), Some(12 << 10));
        assert_eq!(available_in("MemTotal: 100 kB\n"), None);
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }
}
