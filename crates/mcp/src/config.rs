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
    /// How `upload` and `download` move files.
    pub transfers: Transfers,
}

/// How `upload` and `download` move files.
#[derive(Clone, Debug)]
pub enum Transfers {
    /// There are no such tools.
    Off,
    /// From and to files of this machine.
    LocalFiles(LocalFiles),
    /// In the calls and their results, for clients on other machines.
    InCalls,
}

impl Transfers {
    pub(crate) fn local_files(&self) -> Option<&LocalFiles> {
        match self {
            Self::LocalFiles(files) => Some(files),
            Self::Off | Self::InCalls => None,
        }
    }

    /// Marks the sandboxes that end with a client, so that people see where they came from.
    pub(crate) fn mark(&self) -> &'static str {
        match self {
            Self::InCalls => "http",
            Self::Off | Self::LocalFiles(_) => "stdio",
        }
    }
}
