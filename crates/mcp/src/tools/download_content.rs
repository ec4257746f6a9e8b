//! `download` for clients on other machines: the file as an embedded resource, or a signed URL if it is large.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{ContentBlock, ResourceContents};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::signed_url::{Operation, VALID_SECONDS, signed_url};
use super::{Answered, Call, Effect, McpTool, Where};
use crate::read_up_to::read_up_to;
use crate::resources::file_uri;
use crate::tool_error::ToolError;

/// The size up to which a file is in the result. A client in use takes no event above 1 MiB, in base64 or as JSON.
const MAX_EMBEDDED: usize = 512 << 10;

/// Arguments of `download`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct DownloadContentArgs {
    /// File in the sandbox. A relative path starts at the user's home.
    path: String,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DownloadContentAnswer {
    /// The sandbox that has it.
    sandbox: String,
    /// The path that was asked for.
    path: String,
    /// Size in bytes, if the file is in the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Where to get the file, if it is larger than 512 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

impl McpTool for DownloadContentArgs {
    const NAME: &'static str = "download";
    const TITLE: &'static str = "Download a file";
    const DESCRIPTION: &'static str =
        "Returns a file of a sandbox, or a URL if it is larger than 512 KiB. Pack directories with tar first.";
    const EFFECT: Effect = Effect::Reads;
    type Answer = DownloadContentAnswer;

    async fn run(self, call: Call) -> Result<Answered<DownloadContentAnswer>, ToolError> {
        let sandbox = call.existing(self.place).await?;
        let read = match sandbox.guest().read_file(&self.path).await {
            Ok(download) => read_up_to(download, MAX_EMBEDDED).await,
            Err(error) => Err(error),
        };
        let read = match read {
            Ok(read) => read,
            Err(error) => return Err(call.sandboxes.explain(error, sandbox.id()).await),
        };
        let id = sandbox.id().to_string();
        let Some(bytes) = read else {
            let url = signed_url(&sandbox, call.sandboxes.config().preview_scheme, &self.path, Operation::Read);
            let text = format!("Within {VALID_SECONDS} seconds: curl -o NAME '{url}'");
            return Ok(Answered::text(
                text,
                DownloadContentAnswer { sandbox: id, path: self.path, size: None, url: Some(url) },
            ));
        };
        let size = bytes.len() as u64;
        let uri = file_uri(&id, &self.path);
        let contents = match String::from_utf8(bytes) {
            Ok(text) if !text.contains(is_long_in_json) => ResourceContents::text(text, uri),
            Ok(text) => blob(text.as_bytes(), uri),
            Err(error) => blob(error.as_bytes(), uri),
        };
        let structured = DownloadContentAnswer { sandbox: id, path: self.path, size: Some(size), url: None };
        Ok(Answered { content: vec![ContentBlock::resource(contents)], structured })
    }
}

/// Six letters for one, where base64 takes four for three.
fn is_long_in_json(character: char) -> bool {
    character.is_control() && !matches!(character, '\n' | '\r' | '\t')
}

fn blob(bytes: &[u8], uri: String) -> ResourceContents {
    ResourceContents::blob(STANDARD.encode(bytes), uri).with_mime_type("application/octet-stream")
}
