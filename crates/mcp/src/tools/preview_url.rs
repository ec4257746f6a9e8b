//! `preview_url`: the address of a server in a sandbox.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, Call, Effect, McpTool, Where};
use crate::tool_error::ToolError;

/// Arguments of `preview_url`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct PreviewUrlArgs {
    /// The port that a program in the sandbox listens on.
    #[schemars(range(min = 1, max = 65535))]
    port: u16,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PreviewAnswer {
    /// The sandbox.
    sandbox: String,
    /// The address.
    url: String,
}

impl McpTool for PreviewUrlArgs {
    const NAME: &'static str = "preview_url";
    const TITLE: &'static str = "Preview URL";
    const DESCRIPTION: &'static str = "Returns the URL of a port of a sandbox, for the user's browser. Start the server with \
        run_command and `background` first.";
    const EFFECT: Effect = Effect::Reads;
    type Answer = PreviewAnswer;

    async fn run(self, call: Call) -> Result<Answered<PreviewAnswer>, ToolError> {
        if self.port == 0 {
            return Err(ToolError::new("port 0 is no port"));
        }
        let sandbox = call.existing(self.place).await?;
        let url = format!("{}://{}", call.sandboxes.config().preview_scheme, sandbox.host(self.port));
        Ok(Answered::text(url.clone(), PreviewAnswer { sandbox: sandbox.id().to_string(), url }))
    }
}
