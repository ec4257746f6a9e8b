//! `kill_sandbox`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, Call, Effect, McpTool, Where};
use crate::tool_error::ToolError;

/// Arguments of `kill_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct KillSandboxArgs {
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KilledAnswer {
    /// The sandbox.
    sandbox: String,
    /// False if it had ended before.
    killed: bool,
}

impl McpTool for KillSandboxArgs {
    const NAME: &'static str = "kill_sandbox";
    const TITLE: &'static str = "Kill a sandbox";
    const DESCRIPTION: &'static str = "Ends a sandbox with its processes and files. If it is the one that calls share, the \
        next call gets a new one.";
    const EFFECT: Effect = Effect::Destroys;
    type Answer = KilledAnswer;

    async fn run(self, call: Call) -> Result<Answered<KilledAnswer>, ToolError> {
        // A session that another client left is opened to be ended.
        let target = self.place.target()?;
        let sandbox = match &target {
            crate::sandboxes::Target::Session(_) => call.sandboxes.get(target).await?,
            _ => call.sandboxes.existing(target).await?,
        };
        let killed = call.sandboxes.kill(sandbox.id()).await?;
        let text = match killed {
            true => format!("Killed sandbox {}.", sandbox.id()),
            false => format!("Sandbox {} had already ended.", sandbox.id()),
        };
        Ok(Answered::text(text, KilledAnswer { sandbox: sandbox.id().to_string(), killed }))
    }
}
