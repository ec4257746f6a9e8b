//! The rules of a workflow's graph, and nothing else: what may start, what has ended, what may be spliced in.
//!
//! A graph never has a cycle, a dependency on a missing node, or two nodes of the same name. Nodes start in the order
//! of the list. The engine keeps everything else, such as what a node does and its output.
//!
//! ```text
//! pending ──▶ running ──▶ done
//!    ▲  │        │  └───▶ failed
//!    │  ▼        │
//!    └ waiting ◀─┘      (for an approval; a retry leads back to pending)
//! ```

mod cycle;
mod splice;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use isopod_store::NodeState;

pub(crate) use splice::{Splice, SpliceRequest, Strategy};

/// More than any real workflow has, and few enough to visit all of them.
pub(crate) const MAX_NODES: usize = 10_000;

/// A node as the rules see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GraphNode {
    pub(crate) id: String,
    pub(crate) depends_on: Vec<String>,
    pub(crate) state: NodeState,
}

/// The state of a graph as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Something runs, waits or can start.
    Working,
    /// All nodes are done.
    Completed,
    /// Nothing more can start, and these nodes are not done.
    Blocked(Vec<String>),
}

/// Why nodes do not form a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GraphError {
    #[error("there are {0} nodes, but only {MAX_NODES} are allowed")]
    TooMany(usize),
    #[error("two nodes have the id {0:?}")]
    Duplicate(String),
    #[error("node {node:?} depends on {on:?}, which does not exist")]
    UnknownDependency { node: String, on: String },
    #[error("the nodes form a cycle: {}", .0.join(" -> "))]
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
    /// Pending nodes without missing dependencies, by their position.
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
        if let Some(cycle) = cycle::find(&nodes, &children) {
            return Err(GraphError::Cycle(cycle));
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

    /// The nodes that may start, in order.
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

    /// Sets the state of a node. Does nothing if the graph does not have it.
    pub(crate) fn set(&mut self, id: &str, state: NodeState) {
        let Some(place) = self.index.get(id).copied() else { return };
        let before = std::mem::replace(&mut self.nodes[place].state, state);
        self.uncount(before);
        self.count_one(state);
        if (before == NodeState::Done) != (state == NodeState::Done) {
            self.update_children(place, state == NodeState::Done);
        }
        self.update_ready(place);
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
            self.update_ready(place);
        }
    }

    fn update_children(&mut self, place: usize, is_done: bool) {
        for child in std::mem::take(&mut self.children[place]) {
            if is_done {
                self.missing[child] -= 1;
            } else {
                self.missing[child] += 1;
            }
            self.update_ready(child);
            self.children[place].push(child);
        }
    }

    fn update_ready(&mut self, place: usize) {
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

/// A repeated dependency counts once.
fn distinct(names: &[String]) -> impl Iterator<Item = &String> {
    names.iter().enumerate().filter(|(place, name)| !names[..*place].contains(name)).map(|(_, name)| name)
}
