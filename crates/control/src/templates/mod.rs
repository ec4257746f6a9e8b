//! The catalogue: the templates of teams, their names, and their builds.
//!
//! A template has a permanent id and names within its team. All its builds are kept. Tags name builds, and a sandbox is
//! created from the build that a tag names at that moment. Therefore a rebuild affects only future sandboxes, and
//! assigning a tag to an earlier build goes back to it.

mod build_context;
mod build_plan;
mod build_queue;
mod builds;
mod catalogue;
mod ledger;
mod limits;
mod log_allowance;
mod uploads;
mod waiting_contexts;

pub(crate) use build_context::{ContextError, unpack_context};
pub(crate) use build_plan::{LegacyBuild, PlanError, StartBuild, is_files_hash, legacy_source, plan_steps};
pub use builds::run_template_maintenance;
pub(crate) use builds::{Context, Job, TooManyBuilds};
pub use catalogue::{Catalogue, FindError, UsableTemplate};
pub use isopod_store::template_name::NameError;
pub(crate) use isopod_store::template_name::{DEFAULT_TAG, Reference, parse_tag};
pub(crate) use ledger::Reservation;
pub use limits::BuildLimits;
pub(crate) use uploads::{Part, UploadError};
pub(crate) use waiting_contexts::WaitingContext;
