//! Contexts and kernels as a checkpoint holds them. Another guest may read this, also a newer one: new fields need a default.

use std::collections::{BTreeMap, BTreeSet};

use isopod_wire::checkpoint::Connection;
use serde::{Deserialize, Serialize};

use super::kernel::KernelKind;
use crate::encoded::Base64;

/// The contexts of a sandbox.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SavedContexts {
    /// In the order of the list.
    pub(super) all: Vec<SavedContext>,
    /// How many of them come first because E2B's sandboxes have them from the start.
    pub(super) first: usize,
    /// The ids of the default contexts, by language.
    pub(super) defaults: BTreeMap<String, String>,
    /// Languages that have ever had a default context.
    pub(super) ever_created: BTreeSet<String>,
}

impl SavedContexts {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.ever_created.is_empty()
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedContext {
    pub(super) id: String,
    pub(super) language: String,
    pub(super) kernelspec: Option<String>,
    pub(super) cwd: String,
    pub(super) kernel: Option<SavedKernel>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedKernel {
    pub(super) pid: u32,
    pub(super) kind: KernelKind,
    pub(super) begun: bool,
    /// Whether a cell runs. Nobody gets its output any more.
    pub(super) in_cell: bool,
    /// The start of an incomplete line.
    pub(super) line: Base64,
    pub(super) stream: Connection,
    pub(super) stdout: Connection,
    pub(super) stderr: Connection,
}
