//! What a placement knows about servers and about the sandbox.

use std::collections::{BTreeMap, BTreeSet};

use crate::membership::Standing;

/// The id of a server in the database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub String);

/// Labels of a server, or those that a sandbox needs. A needed label with an empty value accepts any.
pub type Labels = BTreeMap<String, String>;

/// How much a server has, or how much of it is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub sandboxes: u32,
    /// In thousandths of a CPU.
    pub cpus: u64,
    /// In MiB.
    pub memory: u64,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: NodeId,
    /// For people.
    pub name: String,
    pub standing: Standing,
    /// Whether an operator has closed it to new sandboxes.
    pub is_cordoned: bool,
    pub labels: Labels,
    /// The tiers that it is reserved for. Empty: all of them, and teams without one.
    pub tiers: BTreeSet<String>,
    pub capacity: Room,
    pub taken: Room,
    /// The templates that are there. None: it can get every template.
    pub templates: Option<BTreeSet<String>>,
    /// Sandboxes that wait in pools, by template.
    pub warm: BTreeMap<String, u32>,
    /// Sandboxes of the team that asks.
    pub of_team: u32,
}

/// A sandbox that is to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub template: String,
    /// In thousandths of a CPU.
    pub cpus: u64,
    /// In MiB.
    pub memory: u64,
    pub labels: Labels,
    pub tier: Option<String>,
    /// The server that had the sandboxes of this session or user before.
    pub session_on: Option<NodeId>,
}
