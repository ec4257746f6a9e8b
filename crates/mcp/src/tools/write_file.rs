//! `write_file`: a whole file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, Call, Effect, McpTool, Where};
use crate::text::visible;
use crate::tool_error::ToolError;

/// Arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct WriteFileArgs {
    /// Path in the sandbox. A relative path starts at the user's home. Missing directories are created.
    path: String,
    /// The whole content.
    content: String,
    /// Whether `content` is base64, for files that are no text.
    #[serde(default)]
    base64: bool,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WrittenAnswer {
    /// The sandbox that has it.
    pub(super) sandbox: String,
    /// The whole path.
    pub(super) path: String,
    /// Size in bytes.
    pub(super) size: u64,
}

impl McpTool for WriteFileArgs {
    const NAME: &'static str = "write_file";
    const TITLE: &'static str = "Write a file";
    const DESCRIPTION: &'static str = "Writes a file in a sandbox. Replaces an existing one.";
    const EFFECT: Effect = Effect::Destroys;
    type Answer = WrittenAnswer;

    async fn run(self, call: Call) -> Result<Answered<WrittenAnswer>, ToolError> {
        let bytes = match self.base64 {
            true => STANDARD
                .decode(self.content.trim())
                .map_err(|error| ToolError::new(format!("`content` is not base64: {error}")))?,
            false => self.content.into_bytes(),
        };
        let size = bytes.len() as u64;
        let sandbox = call.sandbox(self.place).await?;
        match sandbox.guest().write_file(&self.path, bytes).await {
            Ok(written) => {
                let text = format!("Wrote {size} bytes to {}.", visible(&written.path));
                Ok(Answered::text(text, WrittenAnswer { sandbox: sandbox.id().to_string(), path: written.path, size }))
            }
            Err(error) => Err(call.sandboxes.explain(error, sandbox.id()).await),
        }
    }
}
