//! The life of sandboxes: who may do what when, and the tasks that do it.
//!
//! A [`Fleet`] holds all live sandboxes of this server. Each has one task ([`owner`]) that owns its state and is sent
//! commands; everyone else sees snapshots ([`View`]). Intent is written to the store before the node is asked.

mod create;
mod fleet;
mod handle;
mod inside;
mod journal;
mod list;
mod network;
mod once;
mod output;
mod owner;
mod places;
mod recheck;
mod reconcile;
mod rules;
mod sampler;
mod session;
mod state;

pub(crate) use create::{CreateRefusal, NewSandbox, VolumeMount};
pub(crate) use fleet::Fleet;
pub(crate) use handle::{ActError, Life, Sandbox, View};
pub(crate) use inside::Inside;
pub(crate) use journal::Journal;
pub(crate) use list::{Cursor, ListQuery, Order};
pub(crate) use network::NetworkSettings;
pub(crate) use once::{Attempt, OnceRefusal};
pub(crate) use output::run_output;
pub(crate) use places::NoPlace;
pub(crate) use recheck::run_recheck;
pub(crate) use reconcile::reconcile;
pub(crate) use rules::Refusal;
pub(crate) use sampler::{note_usage, run_sampler, sample_now};
pub(crate) use session::SESSION_KEY;
pub(crate) use state::{Ending, State};
