//! The pages. Each file has the routes of its pages, reads what it shows from the API, and renders it.

mod figures;
mod file_view;
pub(crate) mod files;
pub(crate) mod logs;
pub(crate) mod overview;
pub(crate) mod ports;
pub(crate) mod processes;
pub(crate) mod sandbox;
pub(crate) mod sandboxes;
pub(crate) mod terminal;
