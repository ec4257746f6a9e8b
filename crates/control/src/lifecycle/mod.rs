//! The life of sandboxes: who may do what when, and the tasks that do it.
//!
//! A [`Fleet`] holds all live sandboxes of this server. Each has one task ([`controller`]) that owns its state and is sent
//! commands; everyone else sees snapshots ([`View`]). Intent is written to the store before the node is asked.

mod controller;
mod create;
mod fleet;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod guest_connection;
mod handle;
mod idle;
mod journal;
mod list;
mod once;
mod output;
mod places;
mod recheck;
mod reconcile;
mod rules;
mod sampler;
mod session;

pub use create::{CreateRefusal, NewSandbox};
pub use fleet::Fleet;
pub(crate) use fleet::FleetSettings;
pub use guest_connection::GuestConnection;
pub use handle::{ActError, Life, Sandbox, View};
pub(crate) use idle::run_idle_close;
pub(crate) use journal::Journal;
pub(crate) use list::{Cursor, ListQuery, Order};
pub use once::{Attempt, OnceRefusal};
pub(crate) use output::run_output;
pub use places::{NoPlace, TeamLimits};
pub(crate) use recheck::run_recheck;
pub(crate) use reconcile::reconcile;
pub use rules::Refusal;
pub use sampler::note_usage;
pub(crate) use sampler::{run_sampler, sample_now};
pub use session::SESSION_KEY;
