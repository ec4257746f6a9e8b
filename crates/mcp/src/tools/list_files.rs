//! `list_files`: the entries of a directory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, Call, Effect, McpTool, Where, kind_name};
use crate::text::visible;
use crate::tool_error::ToolError;

const MAX_ENTRIES: usize = 1000;

/// Arguments of `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ListFilesArgs {
    /// Directory in the sandbox. Default: the user's home.
    #[serde(default)]
    path: Option<String>,
    /// How many levels to list. Default: 1.
    #[serde(default)]
    #[schemars(range(min = 1, max = 10))]
    depth: Option<u32>,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListAnswer {
    /// The sandbox that has them.
    sandbox: String,
    entries: Vec<ListedEntry>,
    /// Whether there are more entries.
    truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ListedEntry {
    /// The whole path.
    path: String,
    /// `file`, `directory`, `symlink` (without a target) or `other`.
    kind: &'static str,
    /// Size in bytes.
    size: u64,
    /// Permissions, as `ls -l` shows them.
    permissions: String,
    /// The owner's name.
    owner: String,
    /// The target, if it is a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
}

impl McpTool for ListFilesArgs {
    const NAME: &'static str = "list_files";
    const TITLE: &'static str = "List files";
    const DESCRIPTION: &'static str = "Lists a directory in a sandbox, up to 1000 entries.";
    const EFFECT: Effect = Effect::Reads;
    type Answer = ListAnswer;

    async fn run(self, call: Call) -> Result<Answered<ListAnswer>, ToolError> {
        let sandbox = call.sandbox(self.place).await?;
        let path = self.path.filter(|path| !path.is_empty()).unwrap_or_else(|| ".".to_owned());
        let mut listed = match sandbox.guest().list_dir(path, self.depth.unwrap_or(1).clamp(1, 10)).await {
            Ok(listed) => listed,
            Err(error) => return Err(call.sandboxes.explain(error, sandbox.id()).await),
        };
        let truncated = listed.len() > MAX_ENTRIES;
        listed.truncate(MAX_ENTRIES);
        let entries: Vec<_> = listed
            .into_iter()
            .map(|entry| ListedEntry {
                kind: kind_name(entry.kind),
                size: entry.size,
                permissions: entry.permissions,
                owner: entry.owner,
                link: entry.symlink_target,
                path: entry.path,
            })
            .collect();
        let mut lines: Vec<_> = entries.iter().map(line).collect();
        if truncated {
            lines.push(format!("[There are more than {MAX_ENTRIES} entries; list a directory below.]"));
        }
        let text = if lines.is_empty() { "(empty)".to_owned() } else { lines.join("\n") };
        Ok(Answered::text(text, ListAnswer { sandbox: sandbox.id().to_string(), entries, truncated }))
    }
}

/// A name with a line break in it stays on its line.
fn line(entry: &ListedEntry) -> String {
    let end = if entry.kind == "directory" { "/" } else { "" };
    let link = entry.link.as_ref().map(|target| format!(" -> {target}")).unwrap_or_default();
    visible(&format!("{} {:>10} {}{end}{link}", entry.permissions, entry.size, entry.path)).replace('\n', "\\n")
}
