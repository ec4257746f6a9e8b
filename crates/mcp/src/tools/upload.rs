//! `upload`: a file of the client's machine into a sandbox.

use isopod_client::guest::Upload;
use schemars::JsonSchema;
use serde::Deserialize;

use super::write_file::WrittenAnswer;
use super::{Answered, Call, Effect, McpTool, Where};
use crate::text::visible;
use crate::tool_error::ToolError;

/// Arguments of `upload`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct UploadArgs {
    /// File on the user's machine. A relative path starts at the project's directory. Hidden files are refused.
    local_path: String,
    /// Path in the sandbox. A relative path starts at the user's home. An existing file is replaced.
    path: String,
    #[serde(flatten)]
    place: Where,
}

impl McpTool for UploadArgs {
    const NAME: &'static str = "upload";
    const TITLE: &'static str = "Upload a file";
    const DESCRIPTION: &'static str =
        "Copies a file from the user's machine to a sandbox. Pack directories with tar first.";
    const EFFECT: Effect = Effect::DestroysInOpenWorld;
    type Answer = WrittenAnswer;

    async fn run(self, call: Call) -> Result<Answered<WrittenAnswer>, ToolError> {
        let Some(files) = call.sandboxes.config().transfers.local_files() else {
            return Err(ToolError::new("there are no local files"));
        };
        let (file, size) = files.open(&self.local_path).await?;
        let sandbox = call.sandbox(self.place).await?;
        match sandbox.guest().write_file(&self.path, Upload::reader(file)).await {
            Ok(written) => {
                let text = format!("Copied {size} bytes to {}.", visible(&written.path));
                Ok(Answered::text(text, WrittenAnswer { sandbox: sandbox.id().to_string(), path: written.path, size }))
            }
            Err(error) => Err(call.sandboxes.explain(error, sandbox.id()).await),
        }
    }
}
