//! The data in the records of runs: ids, nodes, settings and events of workflows. The logic that uses them is
//! elsewhere.

mod event;
mod node_spec;
mod node_state;
mod rule;
mod run_id;
mod settings;

pub use event::{EventKind, RunEvent};
pub use node_spec::{NodeSpec, Role, Work};
pub use node_state::NodeState;
pub use rule::{Action, Rule};
pub use run_id::{RunId, RunIdError};
pub use settings::{OnFailure, RunSettings};
