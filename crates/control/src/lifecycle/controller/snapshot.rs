//! Takes a snapshot of a running sandbox, which stands still for a moment and goes on. As part of the controller it comes
//! in turn with pauses, the timeout and the end.

use isopod_store::Ending;
use isopod_wire::SnapshotId;
use isopod_wire::node::{NodeError, NodeSnapshot, SnapshotKind};

use super::Controller;
use crate::lifecycle::handle::ActError;
use crate::lifecycle::rules::{Refusal, Request};

impl Controller {
    pub(super) async fn snapshot(&mut self, id: SnapshotId, kind: SnapshotKind) -> Result<NodeSnapshot, ActError> {
        self.decide(Request::Snapshot)?;
        // Files are complete only if the guest can be asked to write them out.
        if !kind.has_memory() && !self.guest_answers().await {
            return Err(ActError::GuestUnresponsive);
        }
        let incarnation = self.incarnation()?;
        let asked = self.ask_node_for_memory(move |node| async move { node.snapshot(&incarnation, &id, kind).await });
        match asked.await {
            Err(ActError::Node(NodeError::NotFound(_))) => {
                self.gone(Ending::Lost).await;
                Err(ActError::Refused(Refusal::NotFound))
            }
            taken => taken,
        }
    }
}
