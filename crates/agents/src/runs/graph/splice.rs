//! Splicing: a running node adds nodes to the graph and removes some that have not started.
//!
//! - Only pending nodes are pruned. Nodes that depended on one depend on the new nodes instead or, if there are none,
//!   on what the pruned node depended on.
//! - A new node with the name of a pending one replaces it. With the name of a node that has started, it gets another
//!   name, and other new nodes that refer to it mean the renamed one.
//! - `child`: the new nodes come after the parent and before what depended on it. `sibling`: they come after what the
//!   parent came after, and nothing waits for them.
//! - A splice that would create a cycle leaves the graph unchanged.

use std::collections::{HashMap, HashSet};

use isopod_store::NodeState;

use super::{Graph, GraphError, GraphNode};

/// Where the new nodes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Strategy {
    #[default]
    Child,
    Sibling,
}

/// A splice and the node that requests it.
#[derive(Clone, Debug)]
pub(crate) struct SpliceRequest {
    pub(crate) parent: String,
    pub(crate) strategy: Strategy,
    /// Ids and dependencies.
    pub(crate) new_nodes: Vec<(String, Vec<String>)>,
    pub(crate) prune: Vec<String>,
}

/// The result of a splice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Splice {
    /// The new nodes' ids, in the order of the request.
    pub(crate) added: Vec<String>,
    pub(crate) pruned: Vec<String>,
    /// Requested to be pruned, but not pending.
    pub(crate) kept: Vec<String>,
    /// Old nodes whose dependencies have changed.
    pub(crate) rewired: Vec<String>,
}

/// Why nothing was spliced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpliceError {
    #[error("there is no node {0:?} to delegate from")]
    NoParent(String),
    #[error("a new node cannot be the one that delegates ({0:?}) or be named twice")]
    Twice(String),
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl Graph {
    /// Splices, or leaves the graph unchanged. `suffix` returns the eight characters of a new name.
    pub(crate) fn splice(
        &mut self,
        request: &SpliceRequest,
        mut suffix: impl FnMut() -> String,
    ) -> Result<Splice, SpliceError> {
        let parent = self.get(&request.parent).ok_or_else(|| SpliceError::NoParent(request.parent.clone()))?.clone();
        let names = self.name_new_nodes(request, &mut suffix)?;
        let (pruned, kept) = self.choose_pruned(request, &names);
        let mut nodes: Vec<GraphNode> = self.nodes.iter().filter(|node| !pruned.contains(&node.id)).cloned().collect();
        let new_nodes = place_new_nodes(&parent, request, &names);
        let ends = ends_of(&new_nodes);
        let replaced: HashSet<&str> = new_nodes.iter().map(|node| node.id.as_str()).collect();

        let mut rewired = Vec::new();
        for node in nodes.iter_mut().filter(|node| !replaced.contains(node.id.as_str())) {
            let before = node.depends_on.clone();
            self.reconnect_orphan(node, &pruned, &ends);
            if request.strategy == Strategy::Child
                && node.state == NodeState::Pending
                && before.contains(&request.parent)
            {
                add_all(&mut node.depends_on, &ends);
            }
            if node.depends_on != before {
                rewired.push(node.id.clone());
            }
        }
        let added = new_nodes.iter().map(|node| node.id.clone()).collect();
        put_in(&mut nodes, new_nodes);
        *self = Self::new(nodes)?;
        Ok(Splice { added, pruned, kept, rewired })
    }

    /// The names of the new nodes, by the requested ones.
    fn name_new_nodes(
        &self,
        request: &SpliceRequest,
        suffix: &mut impl FnMut() -> String,
    ) -> Result<HashMap<String, String>, SpliceError> {
        let mut names: HashMap<String, String> = HashMap::new();
        for (id, _) in &request.new_nodes {
            let began = self.get(id).is_some_and(|node| node.state != NodeState::Pending);
            let mut name = id.clone();
            while began && (self.get(&name).is_some() || request.new_nodes.iter().any(|(other, _)| *other == name)) {
                name = format!("{id}_{}", suffix());
            }
            if names.insert(id.clone(), name).is_some() {
                return Err(SpliceError::Twice(id.clone()));
            }
        }
        Ok(names)
    }

    fn choose_pruned(&self, request: &SpliceRequest, names: &HashMap<String, String>) -> (Vec<String>, Vec<String>) {
        let mut wanted: Vec<String> = request.prune.clone();
        wanted.dedup();
        let is_new = |id: &String| names.values().any(|name| name == id);
        let is_pending = |id: &String| self.get(id).is_some_and(|node| node.state == NodeState::Pending);
        wanted.retain(|id| !is_new(id));
        wanted.into_iter().partition(is_pending)
    }

    /// Replaces dependencies that were pruned.
    fn reconnect_orphan(&self, node: &mut GraphNode, pruned: &[String], ends: &[String]) {
        let mut seen = HashSet::new();
        while let Some(place) = node.depends_on.iter().position(|on| pruned.contains(on)) {
            let gone = node.depends_on.remove(place);
            let first_time = seen.insert(gone.clone());
            if !ends.is_empty() {
                add_all(&mut node.depends_on, ends);
            } else if let (true, Some(gone)) = (first_time, self.get(&gone)) {
                add_all(&mut node.depends_on, &gone.depends_on);
            }
        }
    }
}

fn place_new_nodes(parent: &GraphNode, request: &SpliceRequest, names: &HashMap<String, String>) -> Vec<GraphNode> {
    let before = match request.strategy {
        Strategy::Child => vec![parent.id.clone()],
        Strategy::Sibling => parent.depends_on.clone(),
    };
    let place = |(id, depends_on): &(String, Vec<String>)| {
        let mut renamed: Vec<String> = depends_on.iter().map(|on| names.get(on).unwrap_or(on).clone()).collect();
        let has_one_of_the_new = depends_on.iter().any(|on| names.contains_key(on));
        if !has_one_of_the_new {
            add_all(&mut renamed, &before);
        }
        GraphNode { id: names[id].clone(), depends_on: renamed, state: NodeState::Pending }
    };
    request.new_nodes.iter().map(place).collect()
}

/// The new nodes that no other new node depends on.
fn ends_of(new_nodes: &[GraphNode]) -> Vec<String> {
    let waited_for: HashSet<&String> = new_nodes.iter().flat_map(|node| &node.depends_on).collect();
    new_nodes.iter().map(|node| &node.id).filter(|id| !waited_for.contains(id)).cloned().collect()
}

/// Replaces nodes that have the same name, and appends the others.
fn put_in(nodes: &mut Vec<GraphNode>, new_nodes: Vec<GraphNode>) {
    for new in new_nodes {
        match nodes.iter_mut().find(|node| node.id == new.id) {
            Some(old) => *old = new,
            None => nodes.push(new),
        }
    }
}

fn add_all(names: &mut Vec<String>, more: &[String]) {
    for name in more {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
}
