//! Changes the network policy of a sandbox.

use std::sync::Arc;

use isopod_wire::NetworkPolicy;
use isopod_wire::node::{Incarnation, NodeError};

use super::Sandboxes;
use super::pause::{failed, save};

impl Sandboxes {
    pub(crate) async fn set_network(&self, incarnation: &Incarnation, policy: NetworkPolicy) -> Result<(), NodeError> {
        let sandbox = self.get(incarnation)?;
        let mut inner = sandbox.inner.lock().await;
        if let Some(processes) = &inner.processes {
            let (host, slot) = (Arc::clone(&self.provisioner.host), processes.slot.on_network());
            let wanted = policy.clone();
            let set = tokio::task::spawn_blocking(move || host.network.set_policy(slot, &wanted)).await;
            set.map_err(|error| failed(&sandbox, "change the network of", error))?
                .map_err(|error| failed(&sandbox, "change the network of", error))?;
        }
        if let Some(spec) = &mut inner.record.spec {
            spec.network = policy;
        }
        save(&sandbox, &inner, "change the network of")
    }
}
