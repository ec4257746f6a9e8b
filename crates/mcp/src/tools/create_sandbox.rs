//! `create_sandbox`: another sandbox beside the one that calls share.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, Call, Effect, McpTool};
use crate::sandboxes::Wanted;
use crate::tool_error::ToolError;

/// Arguments of `create_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CreateSandboxArgs {
    /// Template to start from. Default: the one of this connection.
    #[serde(default)]
    template: Option<String>,
    /// Name of a session, whose sandbox outlasts this connection. If it has one, that is returned.
    #[serde(default)]
    #[schemars(length(min = 1, max = 128))]
    session: Option<String>,
    /// Environment variables for all its processes.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Metadata to find it by.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    /// Whether it can reach the internet. Default: the server's.
    #[serde(default)]
    internet: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SandboxAnswer {
    /// The sandbox, for the argument `sandbox` of other tools.
    pub(super) sandbox: String,
    /// Its template.
    pub(super) template: String,
}

impl McpTool for CreateSandboxArgs {
    const NAME: &'static str = "create_sandbox";
    const TITLE: &'static str = "Create a sandbox";
    const DESCRIPTION: &'static str = "Creates another sandbox. Not needed for most work: other tools create the one that \
        calls share.";
    const EFFECT: Effect = Effect::Adds;
    type Answer = SandboxAnswer;

    async fn run(self, call: Call) -> Result<Answered<SandboxAnswer>, ToolError> {
        if self.metadata.keys().any(|key| key.starts_with("isopod.")) {
            return Err(
                ToolError::new("names of metadata that start with `isopod.` are reserved").hint("use `session`")
            );
        }
        let wanted = Wanted {
            template: self.template.filter(|name| !name.is_empty()),
            session: self.session.filter(|name| !name.is_empty()),
            metadata: self.metadata,
            envs: self.env,
            internet: self.internet,
            is_own: false,
        };
        let sandbox = call.sandboxes.create(wanted).await?;
        let answer = SandboxAnswer { sandbox: sandbox.id().to_string(), template: sandbox.template().to_owned() };
        Ok(Answered::text(format!("Sandbox {} runs.", answer.sandbox), answer))
    }
}
