//! `download`: a file of a sandbox onto the client's machine.

use isopod_client::guest::{Download, GuestError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;

use super::{Answered, Call, Effect, McpTool, Where};
use crate::local_files::{NewFile, failed};
use crate::text::visible;
use crate::tool_error::ToolError;

/// What a sandbox may put on the user's disk with one call.
const MAX_FILE: u64 = 4 << 30;

/// Arguments of `download`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct DownloadArgs {
    /// File in the sandbox. A relative path starts at the user's home.
    path: String,
    /// File on the user's machine. A relative path starts at the project's directory, and its directory must exist. Hidden
    /// files are refused.
    local_path: String,
    /// Replace an existing file.
    #[serde(default)]
    overwrite: bool,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DownloadAnswer {
    /// The sandbox that has it.
    sandbox: String,
    /// The whole path on the user's machine.
    local_path: String,
    /// Size in bytes.
    size: u64,
}

impl McpTool for DownloadArgs {
    const NAME: &'static str = "download";
    const TITLE: &'static str = "Download a file";
    const DESCRIPTION: &'static str =
        "Copies a file from a sandbox to the user's machine. Pack directories with tar first.";
    const EFFECT: Effect = Effect::Destroys;
    type Answer = DownloadAnswer;

    async fn run(self, call: Call) -> Result<Answered<DownloadAnswer>, ToolError> {
        let Some(files) = call.sandboxes.config().transfers.local_files() else {
            return Err(ToolError::new("there are no local files"));
        };
        let sandbox = call.existing(self.place).await?;
        let download = match sandbox.guest().read_file(&self.path).await {
            Ok(download) => download,
            Err(error) => return Err(call.sandboxes.explain(error, sandbox.id()).await),
        };
        let new = files.create(&self.local_path, self.overwrite).await?;
        let (path, size) = match save(download, new, &self.local_path).await {
            Ok(saved) => saved?,
            Err(error) => return Err(call.sandboxes.explain(error, sandbox.id()).await),
        };
        let local_path = path.display().to_string();
        let text = format!("Copied {size} bytes to {}.", visible(&local_path));
        Ok(Answered::text(text, DownloadAnswer { sandbox: sandbox.id().to_string(), local_path, size }))
    }
}

/// The sandbox's errors are outside, this machine's inside.
async fn save(
    mut download: Download,
    mut new: NewFile,
    name: &str,
) -> Result<Result<(std::path::PathBuf, u64), ToolError>, GuestError> {
    let mut size = 0;
    while let Some(piece) = download.next().await? {
        size += piece.len() as u64;
        if size > MAX_FILE {
            return Ok(Err(ToolError::new(format!("the file has more than {MAX_FILE} bytes"))));
        }
        if let Err(error) = new.file.write_all(&piece).await {
            return Ok(Err(failed("could not write", name, &error)));
        }
    }
    if let Err(error) = new.file.flush().await {
        return Ok(Err(failed("could not write", name, &error)));
    }
    Ok(new.complete().await.map(|path| (path, size)))
}
