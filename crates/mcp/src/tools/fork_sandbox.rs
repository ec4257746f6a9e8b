//! `fork_sandbox`: copies of a sandbox with its processes and files.

use isopod_wire::error_chain;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, Call, Effect, McpTool, Where};
use crate::text::visible;
use crate::tool_error::ToolError;

/// Arguments of `fork_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ForkSandboxArgs {
    /// The number of copies. Default: 1.
    #[serde(default)]
    #[schemars(range(min = 1, max = 20))]
    count: Option<u32>,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ForkAnswer {
    /// The sandbox that was copied. It goes on.
    sandbox: String,
    /// The copies, for the argument `sandbox` of other tools.
    copies: Vec<String>,
    /// Why there are not more of them.
    errors: Vec<String>,
}

impl McpTool for ForkSandboxArgs {
    const NAME: &'static str = "fork_sandbox";
    const TITLE: &'static str = "Fork a sandbox";
    const DESCRIPTION: &'static str = "Creates copies of a sandbox with its processes, variables and files, to try several \
        ways from one state. The copies end with this connection.";
    const EFFECT: Effect = Effect::Adds;
    type Answer = ForkAnswer;

    async fn run(self, call: Call) -> Result<Answered<ForkAnswer>, ToolError> {
        let sandbox = call.existing(self.place).await?;
        let made = call.sandboxes.fork(sandbox.clone(), self.count.unwrap_or(1).clamp(1, 20)).await?;
        let (copies, errors): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        let copies: Vec<_> = copies.into_iter().flatten().map(|copy| copy.id().to_string()).collect();
        let errors: Vec<_> = errors.into_iter().filter_map(Result::err).map(|error| error_chain(&error)).collect();
        if copies.is_empty() {
            return Err(ToolError::new(format!("no copy could be made: {}", errors.join("; "))));
        }
        let mut text = format!("Copies: {}", copies.join(", "));
        for error in &errors {
            text.push_str(&format!("\nA copy failed: {}", visible(error)));
        }
        Ok(Answered::text(text, ForkAnswer { sandbox: sandbox.id().to_string(), copies, errors }))
    }
}
