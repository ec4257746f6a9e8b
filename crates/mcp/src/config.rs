//! What one client of the MCP server may do.

use std::time::Duration;

use isopod_client::Client;

use crate::local_files::LocalFiles;

/// Settings of the MCP server for one client.
#[derive(Clone, Debug)]
pub struct McpConfig {
    /// The server that has the sandboxes, and the key.
    pub client: Client,
    /// The scheme of preview URLs: `http` or `https`.
    pub preview_scheme: &'static str,
    /// The template of new sandboxes. It needs a code interpreter for `run_code`.
    pub template: String,
    /// The named session that calls use by default. Without one, they use a sandbox that ends with the client.
    pub session: Option<String>,
    /// How long sandboxes live after the MCP server is gone without having said so.
    pub timeout: Duration,
    /// How many sandboxes the client may have at the same time.
    pub max_sandboxes: usize,
    /// How many bytes of each output or file a result holds.
    pub max_output: usize,
    /// Whether the client may also use sandboxes of the team that it didn't create.
    pub all_sandboxes: bool,
    /// The files of this machine that `upload` and `download` may use. Without them, there are no such tools.
    pub local_files: Option<LocalFiles>,
}
