//! `resume_sandbox`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::create_sandbox::SandboxAnswer;
use super::{Answered, Call, Effect, McpTool, Where};
use crate::tool_error::ToolError;

/// Arguments of `resume_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ResumeSandboxArgs {
    #[serde(flatten)]
    place: Where,
}

impl McpTool for ResumeSandboxArgs {
    const NAME: &'static str = "resume_sandbox";
    const TITLE: &'static str = "Resume a sandbox";
    const DESCRIPTION: &'static str = "Lets a paused sandbox go on.";
    const EFFECT: Effect = Effect::Sets;
    type Answer = SandboxAnswer;

    async fn run(self, call: Call) -> Result<Answered<SandboxAnswer>, ToolError> {
        let paused = call.existing(self.place).await?;
        let sandbox = call.sandboxes.resume(paused.id()).await?;
        let answer = SandboxAnswer { sandbox: sandbox.id().to_string(), template: sandbox.template().to_owned() };
        Ok(Answered::text(format!("Sandbox {} runs.", answer.sandbox), answer))
    }
}
