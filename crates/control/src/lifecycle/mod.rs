//! The lifecycle of sandboxes: the rules for what is allowed when, and the tasks that execute it.
//!
//! A [`Fleet`] holds all live sandboxes of this server. Each has one task ([`controller`]) that owns its state and
//! receives commands. All others see snapshots ([`View`]). Intent is written to the store before the node is called.

mod checkpoint;
mod controller;
mod create;
mod drain;
mod fleet;
mod fork;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod guest_connection;
mod handle;
mod idle;
mod journal;
mod list;
mod once;
mod output;
mod recheck;
mod reconcile;
mod rules;
mod sampler;
mod session;
mod snapshot;
mod team_memory;
mod team_quota;
mod team_slots;

pub use checkpoint::{CHECKPOINT_PREFIX, RolledBack};
pub use create::{CreateRefusal, NewSandbox};
pub(crate) use drain::DrainReport;
pub use drain::{DRAIN_RETRY, Draining};
pub use fleet::Fleet;
pub(crate) use fleet::FleetSettings;
pub(crate) use fork::WantedCopies;
pub use guest_connection::GuestConnection;
pub use handle::{ActError, Life, Sandbox, View};
pub(crate) use idle::run_idle_close;
pub(crate) use journal::Journal;
pub(crate) use list::{Cursor, ListQuery, Order};
pub use once::{Attempt, OnceRefusal};
pub(crate) use output::run_output;
pub(crate) use recheck::run_recheck;
pub(crate) use reconcile::reconcile;
pub use rules::Refusal;
pub(crate) use sampler::run_sampler;
pub use sampler::{record_usage, sample_now};
pub use session::SESSION_KEY;
pub use snapshot::SnapshotError;
pub(crate) use snapshot::WantedSnapshot;
pub use team_memory::TeamMemory;
pub use team_slots::{TeamLimitReached, TeamLimits};
