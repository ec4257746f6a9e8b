//! Changing whom a live sandbox may talk to.

use std::sync::Arc;

use isopod_wire::NetworkPolicy;
use isopod_wire::node::{Incarnation, NodeError};

use super::Fleet;
use super::pause::{failed, save};

impl Fleet {
    pub(crate) async fn set_network(&self, incarnation: &Incarnation, policy: NetworkPolicy) -> Result<(), NodeError> {
        let sandbox = self.get(incarnation)?;
        let mut life = sandbox.life.lock().await;
        if let Some(processes) = &life.processes {
            let (host, slot) = (Arc::clone(&self.provisioner.host), processes.slot.on_network());
            let wanted = policy.clone();
            let set = tokio::task::spawn_blocking(move || host.network.set_policy(slot, &wanted)).await;
            set.map_err(|error| failed(&sandbox, "change the network of", error))?
                .map_err(|error| failed(&sandbox, "change the network of", error))?;
        }
        if let Some(spec) = &mut life.record.spec {
            spec.network = policy;
        }
        save(&sandbox, &life, "change the network of")
    }
}
