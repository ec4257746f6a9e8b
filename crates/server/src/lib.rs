//! A whole server: combines the core with E2B's API (`isopod-control`), the features for agents (`isopod-agents`) and
//! the sandbox service (`isopod-service`) and tools for coding agents (`isopod-mcp`) on one port.

mod config;
mod health;
mod host;
mod local_names;
mod mcp;
mod openapi;
mod parts;
mod routes;
mod serve;

pub use config::{LocalNames, ServedNames, ServerConfig};
pub use routes::declared_routes;
pub use serve::{ServeError, serve};
