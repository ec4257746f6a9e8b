//! `list_sandboxes`: what the client has.

use std::collections::BTreeMap;

use isopod_client::sandbox::SandboxState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use time::format_description::well_known::Rfc3339;

use super::{Answered, Call, Effect, McpTool};
use crate::text::visible;
use crate::tool_error::ToolError;

/// Arguments of `list_sandboxes`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ListSandboxesArgs {}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SandboxesAnswer {
    sandboxes: Vec<ListedSandbox>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ListedSandbox {
    /// The sandbox, for the argument `sandbox` of other tools.
    sandbox: String,
    /// Its template.
    template: String,
    /// `running`, `paused` or `unknown`.
    state: &'static str,
    /// Whether calls without `sandbox` and `session` use it.
    is_default: bool,
    /// When it ends unless this connection goes on.
    ends: String,
    metadata: BTreeMap<String, String>,
}

impl McpTool for ListSandboxesArgs {
    const NAME: &'static str = "list_sandboxes";
    const TITLE: &'static str = "List sandboxes";
    const DESCRIPTION: &'static str = "Lists the sandboxes that this client has.";
    const EFFECT: Effect = Effect::Reads;
    type Answer = SandboxesAnswer;

    async fn run(self, call: Call) -> Result<Answered<SandboxesAnswer>, ToolError> {
        let listed = call.sandboxes.list().await?;
        let sandboxes: Vec<_> = listed
            .into_iter()
            .map(|(info, is_default)| ListedSandbox {
                sandbox: info.id.to_string(),
                template: info.alias.unwrap_or(info.template_id),
                state: state_name(info.state),
                is_default,
                ends: info.end_at.format(&Rfc3339).unwrap_or_default(),
                metadata: info.metadata,
            })
            .collect();
        let lines: Vec<_> = sandboxes.iter().map(line).collect();
        let text = if lines.is_empty() { "(none)".to_owned() } else { lines.join("\n") };
        Ok(Answered::text(text, SandboxesAnswer { sandboxes }))
    }
}

fn line(sandbox: &ListedSandbox) -> String {
    let mark = if sandbox.is_default { " (default)" } else { "" };
    let session = sandbox.metadata.get("isopod.session").map(|name| format!(" session {name}")).unwrap_or_default();
    let text = format!("{}{mark} {} {}{session}", sandbox.sandbox, sandbox.state, sandbox.template);
    visible(&text).replace('\n', "\\n")
}

fn state_name(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
        _ => "unknown",
    }
}
