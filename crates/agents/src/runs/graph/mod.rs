//! The rules of a workflow's graph, and nothing else: what may start, what is over, what may be spliced in.
//!
//! A graph never has a cycle, a dependency on a node that it does not have, or two nodes of one name. Nodes start in the
//! order in which they stand in the list. Whoever acts keeps the rest (what a node does, what it gave) elsewhere.
//!
//! ```text
//! pending ──▶ running ──▶ done
//!    ▲  │        │  └───▶ failed
//!    │  ▼        │
//!    └ waiting ◀─┘      (for a person's word; a retry leads back to pending)
//! ```

mod cycle;
mod splice;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use isopod_store::NodeState;

pub(crate) use splice::{Splice, SpliceRequest, Strategy};

/// More than anybody draws, and few enough to look at all of them.
pub(crate) const MAX_NODES: usize = 10_000;

/// A node as the rules see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GraphNode {
    pub(crate) id: String,
    pub(crate) depends_on: Vec<String>,
    pub(crate) state: NodeState,
}

/// What a graph as a whole has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Something runs, waits or can start.
    Working,
    /// All nodes are done.
    Completed,
    /// Nothing more can start, and these are not done.
    Blocked(Vec<String>),
}

/// Why nodes are no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GraphError {
    #[error("there are {0} nodes, and {MAX_NODES} are allowed")]
    TooMany(usize),
    #[error("two nodes have the id {0:?}")]
    Duplicate(String),
    #[error("node {node:?} depends on {on:?}, which does not exist")]
    UnknownDependency { node: String, on: String },
    #[error("the nodes depend on each other in a circle: {}", .0.join(" -> "))]
    Cycle(Vec<String>),
}

/// The nodes of a run.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    nodes: Vec<GraphNode>,
    index: HashMap<String, usize>,
    children: Vec<Vec<usize>>,
    /// How many dependencies of each node are not done.
    missing: Vec<usize>,
    /// Pending nodes that miss nothing, by their place in the list.
    ready: BTreeSet<usize>,
    running: usize,
    waiting: usize,
    done: usize,
}

impl Graph {
    pub(crate) fn new(nodes: Vec<GraphNode>) -> Result<Self, GraphError> {
        if nodes.len() > MAX_NODES {
            return Err(GraphError::TooMany(nodes.len()));
        }
        let mut index = HashMap::with_capacity(nodes.len());
        for (place, node) in nodes.iter().enumerate() {
            if index.insert(node.id.clone(), place).is_some() {
                return Err(GraphError::Duplicate(node.id.clone()));
            }
        }
        let mut children = vec![Vec::new(); nodes.len()];
        for (place, node) in nodes.iter().enumerate() {
            for on in distinct(&node.depends_on) {
                let Some(parent) = index.get(on) else {
                    return Err(GraphError::UnknownDependency { node: node.id.clone(), on: on.clone() });
                };
                children[*parent].push(place);
            }
        }
        if let Some(circle) = cycle::find(&nodes, &children) {
            return Err(GraphError::Cycle(circle));
        }
        let mut graph = Self {
            nodes,
            index,
            children,
            missing: Vec::new(),
            ready: BTreeSet::new(),
            running: 0,
            waiting: 0,
            done: 0,
        };
        graph.count();
        Ok(graph)
    }

    /// The nodes that may start, in their order.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &str> {
        self.ready.iter().map(|place| self.nodes[*place].id.as_str())
    }

    pub(crate) fn nodes(&self) -> &[GraphNode] {
        &self.nodes
    }

    pub(crate) fn get(&self, id: &str) -> Option<&GraphNode> {
        self.index.get(id).map(|place| &self.nodes[*place])
    }

    pub(crate) fn running(&self) -> usize {
        self.running
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Moves a node. A node that the graph does not have stays away.
    pub(crate) fn set(&mut self, id: &str, state: NodeState) {
        let Some(place) = self.index.get(id).copied() else { return };
        let before = std::mem::replace(&mut self.nodes[place].state, state);
        self.uncount(before);
        self.count_one(state);
        if (before == NodeState::Done) != (state == NodeState::Done) {
            self.tell_children(place, state == NodeState::Done);
        }
        self.place_in_line(place);
    }

    pub(crate) fn verdict(&self) -> Verdict {
        if self.running + self.waiting + self.ready.len() > 0 {
            return Verdict::Working;
        }
        if self.done == self.nodes.len() {
            return Verdict::Completed;
        }
        let left = self.nodes.iter().filter(|node| node.state != NodeState::Done);
        Verdict::Blocked(left.map(|node| node.id.clone()).collect())
    }

    fn count(&mut self) {
        for place in 0..self.nodes.len() {
            let node = &self.nodes[place];
            let is_missing =
                |on: &&String| self.index.get(*on).is_some_and(|parent| self.nodes[*parent].state != NodeState::Done);
            let missing = distinct(&node.depends_on).filter(is_missing).count();
            self.missing.push(missing);
            self.count_one(self.nodes[place].state);
            self.place_in_line(place);
        }
    }

    fn tell_children(&mut self, place: usize, is_done: bool) {
        for child in std::mem::take(&mut self.children[place]) {
            if is_done {
                self.missing[child] -= 1;
            } else {
                self.missing[child] += 1;
            }
            self.place_in_line(child);
            self.children[place].push(child);
        }
    }

    fn place_in_line(&mut self, place: usize) {
        if self.nodes[place].state == NodeState::Pending && self.missing[place] == 0 {
            self.ready.insert(place);
        } else {
            self.ready.remove(&place);
        }
    }

    fn count_one(&mut self, state: NodeState) {
        if let Some(count) = self.counter(state) {
            *count += 1;
        }
    }

    fn uncount(&mut self, state: NodeState) {
        if let Some(count) = self.counter(state) {
            *count -= 1;
        }
    }

    fn counter(&mut self, state: NodeState) -> Option<&mut usize> {
        match state {
            NodeState::Running => Some(&mut self.running),
            NodeState::Waiting => Some(&mut self.waiting),
            NodeState::Done => Some(&mut self.done),
            NodeState::Pending | NodeState::Failed => None,
        }
    }
}

/// A dependency that is named twice counts once.
fn distinct(names: &[String]) -> impl Iterator<Item = &String> {
    names.iter().enumerate().filter(|(place, name)| !names[..*place].contains(name)).map(|(_, name)| name)
}
