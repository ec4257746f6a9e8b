//! `upload` for clients on other machines: the content is in the call, or the caller sends it to a signed URL.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::signed_url::{Operation, VALID_SECONDS, signed_url};
use super::{Answered, Call, Effect, McpTool, Where};
use crate::text::visible;
use crate::tool_error::ToolError;

/// How many bytes a call may carry. Requests have a limit as well, which is a little higher.
const MAX_CONTENT: usize = 8 << 20;

/// Arguments of `upload`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct UploadContentArgs {
    /// Path in the sandbox. A relative path starts at the user's home. An existing file is replaced.
    path: String,
    /// The content, up to 8 MiB. Without it, the result has a URL for one `curl -F file=@NAME URL`.
    #[serde(default)]
    content: Option<String>,
    /// Whether `content` is base64, for files that are no text.
    #[serde(default)]
    base64: bool,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct UploadAnswer {
    /// The sandbox.
    sandbox: String,
    /// The path.
    path: String,
    /// Size in bytes, if the content was in the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Where to send the content, as a form with the field `file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

impl McpTool for UploadContentArgs {
    const NAME: &'static str = "upload";
    const TITLE: &'static str = "Upload a file";
    const DESCRIPTION: &'static str =
        "Writes a file in a sandbox, from content in the call or through a URL. Pack directories with tar first.";
    const EFFECT: Effect = Effect::DestroysInOpenWorld;
    type Answer = UploadAnswer;

    async fn run(self, call: Call) -> Result<Answered<UploadAnswer>, ToolError> {
        let Some(content) = self.content else {
            let sandbox = call.sandbox(self.place).await?;
            let url = signed_url(&sandbox, call.sandboxes.config().preview_scheme, &self.path, Operation::Write);
            let text = format!("Within {VALID_SECONDS} seconds: curl -F file=@NAME '{url}'");
            let answer =
                UploadAnswer { sandbox: sandbox.id().to_string(), path: self.path, size: None, url: Some(url) };
            return Ok(Answered::text(text, answer));
        };
        let bytes = match self.base64 {
            true => STANDARD
                .decode(content.trim())
                .map_err(|error| ToolError::new(format!("`content` is not base64: {error}")))?,
            false => content.into_bytes(),
        };
        if bytes.len() > MAX_CONTENT {
            return Err(ToolError::new(format!("`content` has more than {MAX_CONTENT} bytes"))
                .hint("leave it out to get a URL to send it to"));
        }
        let size = bytes.len() as u64;
        let sandbox = call.sandbox(self.place).await?;
        match sandbox.guest().write_file(&self.path, bytes).await {
            Ok(written) => {
                let text = format!("Wrote {size} bytes to {}.", visible(&written.path));
                let sandbox = sandbox.id().to_string();
                Ok(Answered::text(text, UploadAnswer { sandbox, path: written.path, size: Some(size), url: None }))
            }
            Err(error) => Err(call.sandboxes.explain(error, sandbox.id()).await),
        }
    }
}
