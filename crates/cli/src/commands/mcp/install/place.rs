//! Where a coding agent has its configuration, and in which form.

use std::path::{Path, PathBuf};

use super::entry::Entry;
use super::{codex, json};
use crate::args::{McpClient, McpScope};
use crate::env_names;
use crate::failure::Hint;

pub(super) struct Place {
    client: McpClient,
    scope: McpScope,
    path: PathBuf,
}

impl Place {
    pub(super) fn of(client: McpClient, scope: Option<McpScope>) -> anyhow::Result<Self> {
        let default = match client {
            McpClient::Claude | McpClient::Vscode => McpScope::Project,
            McpClient::Codex | McpClient::Cursor => McpScope::User,
        };
        let scope = scope.unwrap_or(default);
        let path = match scope {
            McpScope::Project => PathBuf::from(file(client, scope)),
            McpScope::User => home()?.join(file(client, scope)),
        };
        Ok(Self { client, scope, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Files of a project are shared with others, and only name the variable that has the key.
    pub(super) fn holds_secrets(&self) -> bool {
        self.scope == McpScope::User
    }

    /// The file with our entry in it.
    pub(super) fn render(&self, before: Option<&str>, entry: &Entry) -> anyhow::Result<String> {
        match self.client {
            McpClient::Claude => json::merge(before, "mcpServers", &entry.json("${E2B_API_KEY}"), None),
            McpClient::Cursor => json::merge(before, "mcpServers", &entry.json("${env:E2B_API_KEY}"), None),
            McpClient::Vscode => {
                // VS Code asks for it once, and keeps it.
                let input = (!entry.has_key).then(entry_input);
                json::merge(before, "servers", &entry.json("${input:isopod-key}"), input.as_ref())
            }
            McpClient::Codex => codex::merge(before, entry),
        }
    }

    pub(super) fn next_step(&self, has_key: bool) -> &'static str {
        match (self.client, has_key) {
            (McpClient::Vscode, false) => "start the server in VS Code, which then asks for the key",
            (_, false) => "start the agent where E2B_API_KEY is set, for example after: eval \"$(isopod env)\"",
            (_, true) => "restart the agent",
        }
    }
}

fn entry_input() -> serde_json::Value {
    serde_json::json!({ "type": "promptString", "id": "isopod-key", "description": "Key of Isopod", "password": true })
}

fn file(client: McpClient, scope: McpScope) -> &'static str {
    match (client, scope) {
        (McpClient::Claude, McpScope::Project) => ".mcp.json",
        (McpClient::Claude, McpScope::User) => ".claude.json",
        (McpClient::Codex, _) => ".codex/config.toml",
        (McpClient::Cursor, _) => ".cursor/mcp.json",
        (McpClient::Vscode, McpScope::Project) => ".vscode/mcp.json",
        (McpClient::Vscode, McpScope::User) => ".config/Code/User/mcp.json",
    }
}

fn home() -> anyhow::Result<PathBuf> {
    let home = std::env::var_os(env_names::HOME).filter(|home| !home.is_empty());
    home.map(PathBuf::from).ok_or_else(|| Hint::new("there is no home directory", "set HOME, or use --scope project"))
}
