//! The catalogue: which templates teams have, what they are called, and the builds that make them.
//!
//! A template has an id for ever and names of its team's. Each build of it is kept; tags name builds, and a sandbox is
//! made of the build that a tag names at that moment. So a rebuild changes what the next sandbox is made of and nothing
//! else, and giving a tag to an earlier build goes back to it.

mod build_context;
mod build_plan;
mod builds;
mod catalogue;
mod ledger;
mod limits;
mod log_allowance;
mod name;
mod turns;
mod uploads;

pub(crate) use build_context::{ContextError, unpack_context};
pub(crate) use build_plan::{LegacyBuild, PlanError, StartBuild, is_files_hash, legacy_source, plan_steps};
pub use builds::run_template_upkeep;
pub(crate) use builds::{Context, Job, TooManyBuilds};
pub(crate) use catalogue::NodeTemplate;
pub use catalogue::{Catalogue, FindError, Usable};
pub(crate) use ledger::Reservation;
pub use limits::BuildLimits;
pub use name::NameError;
pub(crate) use name::{DEFAULT_TAG, Reference, parse_tag};
pub(crate) use uploads::UploadError;
