//! Runs sandboxes on this machine.
//!
//! The record of a sandbox, a file in the state directory, is the source of truth. It is written before anything else
//! is created. A new process reads the records, adopts what still runs and removes whatever no record claims.

mod admission;
mod boot;
mod build;
mod disposal;
mod generation_name;
mod guest_program;
mod guest_request;
mod home;
mod host;
mod images;
mod layer_users;
mod node;
mod pool;
mod provision;
mod record;
mod recycle;
mod removal;
mod restore_memory;
mod sandbox;
mod slot;
mod spawner;
mod start;
mod start_from_image;
mod start_image;
mod state;
mod sweep;
mod template;
mod template_pool;
mod workspace;
mod zygote;

pub mod base;

pub use guest_program::guest_program_bytes;
pub use home::{HomeError, HomeKind, Kept, KeptEntry, list_kept};
pub use host::HostError;
pub use images::image_store;
pub use isopod_checkpoint::check_criu;
pub use isopod_image::registry::RegistrySettings;
pub use node::{
    BuildTemplateError, BuiltTemplate, DEFAULT_SWEEP, Node, NodeConfig, OpenError, Prepared, PreparedTemplate,
    TemplateProgress,
};
pub use pool::PoolSize;
pub use removal::remove_everything;
pub use spawner::SpawnerProgram;
pub use state::{StateError, StateRoot};
pub use sweep::{SweepError, SweepReport, sweep_abandoned};
pub use template::{
    LayerInfo, PackageDifference, RecipeInfo, has_recipe, layer_names, list_layers, list_recipes, package_differences,
    remove_layer, remove_unfinished,
};
pub use workspace::{MountedPart, ServedPart, WorkspaceServer, WorkspaceUnavailable};
