//! `pause_sandbox`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, Call, Effect, McpTool, Where};
use crate::tool_error::ToolError;

/// Arguments of `pause_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct PauseSandboxArgs {
    /// Whether to keep processes and variables. Without, only files are kept. Default: true.
    #[serde(default)]
    keep_memory: Option<bool>,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PausedAnswer {
    /// The sandbox.
    sandbox: String,
    /// False if it was paused before.
    paused: bool,
}

impl McpTool for PauseSandboxArgs {
    const NAME: &'static str = "pause_sandbox";
    const TITLE: &'static str = "Pause a sandbox";
    const DESCRIPTION: &'static str = "Pauses a sandbox. resume_sandbox lets it go on where it was.";
    const EFFECT: Effect = Effect::Sets;
    type Answer = PausedAnswer;

    async fn run(self, call: Call) -> Result<Answered<PausedAnswer>, ToolError> {
        let sandbox = call.existing(self.place).await?;
        let paused = sandbox.pause(self.keep_memory.unwrap_or(true)).await?;
        let text = match paused {
            true => format!("Paused sandbox {}.", sandbox.id()),
            false => format!("Sandbox {} was already paused.", sandbox.id()),
        };
        Ok(Answered::text(text, PausedAnswer { sandbox: sandbox.id().to_string(), paused }))
    }
}
