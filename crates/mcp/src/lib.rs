//! An MCP server: coding agents call its tools, and the tools use sandboxes of a server through its public API.
//!
//! [`serve`] speaks with one client until that client closes the connection, and then kills the sandboxes that it created
//! for it. [`McpHttp`] does the same for many clients over streamable HTTP, with a session for each. Whatever comes from a
//! sandbox is data: text that people may see has no control sequences, and every result has a limit on its size. Nothing
//! here reads the environment.

mod config;
mod http;
mod local_files;
mod output;
mod read_up_to;
mod reporter;
mod resources;
mod sandboxes;
mod schema;
mod serve;
mod server;
mod text;
mod tool_error;
mod tools;

pub use config::{McpConfig, Transfers};
pub use http::{HttpBody, HttpConfig, McpHttp, Visitor};
pub use local_files::{LocalFiles, RootError};
pub use serve::{ServeError, serve};
