//! The escape suite: every attack that a sandbox of this node must withstand, tried in real sandboxes, as their `user` and
//! as their root.
//!
//! A case holds when the attack fails, when the sandbox, a neighbour and the node work on, and when nothing is left on
//! the host. Each test writes what it saw to the rows of `docs/security/escape-suite.md`, which
//! `docs/security/regenerate.sh` makes from a run.

mod access;
mod arena;
mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod entering;
mod exhaustion;
mod files;
mod kernel;
mod neighbours;
mod network;
mod network_rights;
mod probe;
mod raw_http;
mod served;
mod store;
mod table;
mod template;
mod template_rig;
mod zygote;

/// The program under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_isopod");
