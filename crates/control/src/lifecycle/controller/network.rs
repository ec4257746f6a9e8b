//! Replaces the network policy of a running sandbox.

use isopod_store::{Ending, EventType, NetworkSettings};
use isopod_wire::node::NodeError;
use serde_json::json;

use super::Controller;
use crate::lifecycle::handle::ActError;
use crate::lifecycle::rules::{Refusal, Request};

impl Controller {
    /// Replaces the rules for outbound traffic. The rules for inbound traffic stay as they were created.
    pub(super) async fn set_network(
        &mut self,
        allow_internet: Option<bool>,
        network: NetworkSettings,
    ) -> Result<(), ActError> {
        self.decide(Request::SetNetwork)?;
        let incarnation = self.incarnation()?;
        // The API handler has already parsed the same texts, so they are valid.
        let Ok(policy) = network.policy(allow_internet) else { return Err(ActError::Refused(Refusal::Busy)) };
        match self.ask_node(|node| async move { node.set_network(&incarnation, policy).await }).await {
            Ok(()) => {}
            Err(ActError::Node(NodeError::NotFound(_))) => {
                self.gone(Ending::Lost).await;
                return Err(ActError::Refused(Refusal::NotFound));
            }
            Err(error) => return Err(error),
        }
        self.row.allow_internet = allow_internet;
        self.row.network.allow_out = network.allow_out;
        self.row.network.deny_out = network.deny_out;
        self.save_or_retry().await;
        self.publish();
        self.fleet.journal.event(EventType::Updated, &self.row, json!({ "updated": "network" }));
        Ok(())
    }
}
