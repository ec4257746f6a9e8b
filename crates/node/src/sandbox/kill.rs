//! Ending a sandbox because somebody asks for it.

use std::sync::Arc;

use isopod_wire::node::{Incarnation, NodeError};

use super::Fleet;
use crate::disposal::{Remains, dispose_with};

impl Fleet {
    pub(crate) async fn kill(&self, incarnation: &Incarnation) -> Result<(), NodeError> {
        let Some(sandbox) = self.find(incarnation) else { return Ok(()) };
        let mut life = sandbox.life.lock().await;
        if life.ending {
            return Ok(());
        }
        life.ending = true;
        let network = life.processes.take().map(|processes| processes.network);
        let provisioner = Arc::clone(&self.provisioner);
        let remains = Remains::of(&life.record, &provisioner.home);
        let done = tokio::task::spawn_blocking(move || dispose_with(&provisioner.host, &remains, network)).await;
        self.forget(incarnation);
        done.map_err(|error| NodeError::Failed { what: "kill", incarnation: incarnation.clone(), source: error.into() })
    }
}
