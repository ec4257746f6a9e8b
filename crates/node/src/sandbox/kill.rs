//! Ends a sandbox on request.

use std::sync::Arc;

use isopod_wire::node::{Incarnation, NodeError};

use super::Sandboxes;
use crate::disposal::{Remains, dispose_with};

impl Sandboxes {
    pub(crate) async fn kill(&self, incarnation: &Incarnation) -> Result<(), NodeError> {
        let Some(sandbox) = self.find(incarnation) else { return Ok(()) };
        let mut inner = sandbox.inner.lock().await;
        if inner.ending {
            return Ok(());
        }
        inner.ending = true;
        let network = inner.processes.take().map(|processes| processes.network);
        let provisioner = Arc::clone(&self.provisioner);
        let remains = Remains::of(&inner.record, &provisioner.home);
        let done = tokio::task::spawn_blocking(move || dispose_with(&provisioner.host, &remains, network)).await;
        self.forget(incarnation);
        done.map_err(|error| NodeError::Failed { what: "kill", incarnation: incarnation.clone(), source: error.into() })
    }
}
