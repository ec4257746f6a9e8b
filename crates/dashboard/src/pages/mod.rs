//! The pages. Each file has the routes of its pages, reads what it shows from the API, and renders it.

pub(crate) mod overview;
pub(crate) mod sandbox;
pub(crate) mod sandboxes;
