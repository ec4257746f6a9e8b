//! Delegation: an agent or a rule adds nodes to the graph of this run. Other runs of the same workflow have their own
//! graphs.

use isopod_store::secrets::new_uuid;
use isopod_store::{EventKind, NodeSpec, Work};
use serde_json::json;

use super::load::new_row;
use super::{End, RunTask};
use crate::runs::agent::Delegation;
use crate::runs::graph::{Splice, SpliceRequest, Strategy};
use crate::runs::workflow::check_node;

impl RunTask {
    pub(super) fn delegate(&mut self, id: &str, delegation: &Delegation) {
        let allowed = self.nodes.get(id).is_some_and(|node| node.spec.allow_delegation);
        if !allowed {
            let data = json!({ "message": "delegation is not allowed for this node and was ignored" });
            return self.event(EventKind::IntermediateLog, Some(id), data);
        }
        let data = json!({ "action": "delegate", "reason": delegation.reason });
        self.event(EventKind::SystemIntervention, Some(id), data);
        let new_nodes = self.at_service_of(id, &delegation.new_nodes);
        self.splice(id, delegation.strategy(), &new_nodes, &delegation.prune_nodes);
    }

    /// Agents without a URL are at the service of the agent that asks for them.
    fn at_service_of(&self, id: &str, new_nodes: &[NodeSpec]) -> Vec<NodeSpec> {
        let url = self.nodes.get(id).and_then(|node| node.spec.agent.clone());
        let at_service = |node: &NodeSpec| match node.work() {
            Work::Agent { url: None } => NodeSpec { agent: url.clone(), ..node.clone() },
            _ => node.clone(),
        };
        new_nodes.iter().map(at_service).collect()
    }

    pub(super) fn spawn_agent(&mut self, id: &str, node: NodeSpec) {
        // After a failure, nothing may depend on the failed node.
        let is_running = self.graph.get(id).is_some_and(|node| node.state == isopod_store::NodeState::Done);
        let strategy = if is_running { Strategy::Child } else { Strategy::Sibling };
        self.splice(id, strategy, &[node], &[]);
    }

    fn splice(&mut self, parent: &str, strategy: Strategy, new_nodes: &[NodeSpec], prune: &[String]) {
        if let Some(error) = new_nodes.iter().find_map(|node| check_node(node).err()) {
            return self.refuse_splice(&error);
        }
        let request = SpliceRequest {
            parent: parent.to_owned(),
            strategy,
            new_nodes: new_nodes.iter().map(|node| (node.id.clone(), node.depends_on.clone())).collect(),
            prune: prune.to_vec(),
        };
        match self.graph.splice(&request, || new_uuid()[..8].to_owned()) {
            Ok(done) => self.follow_splice(parent, new_nodes, done),
            Err(error) => self.refuse_splice(&error),
        }
    }

    fn refuse_splice(&mut self, error: &dyn std::error::Error) {
        self.end = Some(End::failed("invalid_delegation", format!("the delegation is invalid: {error}")));
    }

    /// Updates the rows to match the graph.
    fn follow_splice(&mut self, parent: &str, new_nodes: &[NodeSpec], done: Splice) {
        for id in &done.pruned {
            self.remove_node(id);
        }
        for (spec, id) in new_nodes.iter().zip(&done.added) {
            let depends_on = self.graph.get(id).map(|node| node.depends_on.clone()).unwrap_or_default();
            let place = self.nodes.get(id).map_or(self.next_place, |old| old.place);
            self.next_place = self.next_place.max(place + 1);
            self.retrying.remove(id);
            self.add_node(new_row(NodeSpec { id: id.clone(), depends_on, ..spec.clone() }, place));
            let data = json!({ "by": parent, "asked_for": spec.id });
            self.event(EventKind::NodeCreated, Some(id), data);
        }
        for id in &done.rewired {
            let depends_on = self.graph.get(id).map(|node| node.depends_on.clone()).unwrap_or_default();
            self.with_node(id, |node| node.spec.depends_on = depends_on);
        }
        if !done.pruned.is_empty() || !done.kept.is_empty() {
            let data = json!({ "pruned": done.pruned, "not_pruned": done.kept });
            self.event(EventKind::IntermediateLog, Some(parent), data);
        }
    }
}
