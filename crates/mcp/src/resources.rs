//! Files and logs of sandboxes as resources. `current` stands for the sandbox that calls use by default.
//!
//! ```text
//! sandbox://{sandbox}/files/{path}    sandbox://{sandbox}/logs
//! ```

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use isopod_client::Sandbox;
use isopod_client::guest::EntryKind;
use isopod_client::sandbox::LogQuery;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};

use crate::read_up_to::read_up_to;
use crate::sandboxes::{Sandboxes, Target};
use crate::text::visible;
use crate::tool_error::ToolError;

const SCHEME: &str = "sandbox://";
const CURRENT: &str = "current";
/// How many files of a home directory are listed.
const MAX_LISTED: usize = 100;
const MAX_LOG_ENTRIES: u32 = 1000;
/// What a path can't have in a URI.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// What a URI names.
#[derive(Debug, PartialEq, Eq)]
enum Name {
    File { sandbox: String, path: String },
    Logs { sandbox: String },
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let file = ResourceTemplate::new("sandbox://{sandbox}/files/{+path}", "file")
        .with_title("File in a sandbox")
        .with_description("`sandbox` is an id, or `current`; `path` is absolute, without its first slash.");
    let logs = ResourceTemplate::new("sandbox://{sandbox}/logs", "logs")
        .with_title("Log of a sandbox")
        .with_description("`sandbox` is an id, or `current`.")
        .with_mime_type("text/plain");
    vec![file, logs]
}

/// The logs of the client's sandboxes, and the files in their home directories. Creates nothing.
pub(crate) async fn list(sandboxes: &Arc<Sandboxes>) -> Vec<Resource> {
    let mut all = Vec::new();
    for sandbox in sandboxes.held() {
        let id = sandbox.id();
        all.push(Resource::new(format!("{SCHEME}{id}/logs"), format!("log of {id}")).with_mime_type("text/plain"));
        // A sandbox that is paused or gone has no files to show.
        let entries = sandbox.guest().list_dir(".", 1).await.unwrap_or_default();
        let files = entries.iter().filter(|entry| entry.kind == EntryKind::File).take(MAX_LISTED);
        all.extend(files.map(|entry| {
            Resource::new(file_uri(id.as_str(), &entry.path), visible(&entry.name)).with_size(entry.size)
        }));
    }
    all
}

pub(crate) async fn read(sandboxes: &Arc<Sandboxes>, uri: &str) -> Result<ReadResourceResult, ToolError> {
    let name = parse(uri).ok_or_else(|| {
        ToolError::new("no such resource")
            .hint("sandbox://current/files/home/user/NAME and sandbox://current/logs are ones")
    })?;
    let contents = match name {
        Name::File { sandbox, path } => {
            let sandbox = find(sandboxes, sandbox).await?;
            read_file(sandboxes, &sandbox, &path, uri).await?
        }
        Name::Logs { sandbox } => {
            let sandbox = find(sandboxes, sandbox).await?;
            ResourceContents::text(logs(sandboxes, &sandbox).await?, uri)
        }
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

/// The URI of a file. A relative path starts at the user's home.
pub(crate) fn file_uri(sandbox: &str, path: &str) -> String {
    let path = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/home/user/{path}"),
    };
    format!("{SCHEME}{sandbox}/files{}", utf8_percent_encode(&path, ESCAPED))
}

async fn find(sandboxes: &Arc<Sandboxes>, name: String) -> Result<Sandbox, ToolError> {
    let target = if name == CURRENT { Target::Default } else { Target::Sandbox(name) };
    sandboxes.existing(target).await
}

async fn read_file(
    sandboxes: &Sandboxes,
    sandbox: &Sandbox,
    path: &str,
    uri: &str,
) -> Result<ResourceContents, ToolError> {
    let limit = sandboxes.config().max_output;
    let read = match sandbox.guest().read_file(path).await {
        Ok(download) => read_up_to(download, limit).await,
        Err(error) => Err(error),
    };
    let bytes = match read {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            return Err(ToolError::new(format!("{path} has more than {limit} bytes"))
                .hint("read_file reads parts of a file, and download copies it"));
        }
        Err(error) => return Err(sandboxes.explain(error, sandbox.id()).await),
    };
    Ok(match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(error) => {
            ResourceContents::blob(STANDARD.encode(error.as_bytes()), uri).with_mime_type("application/octet-stream")
        }
    })
}

async fn logs(sandboxes: &Sandboxes, sandbox: &Sandbox) -> Result<String, ToolError> {
    let query = LogQuery { start_ms: None, limit: Some(MAX_LOG_ENTRIES) };
    let entries = sandboxes.client().logs(sandbox.id(), query).await?;
    let mut text = String::new();
    for entry in entries {
        text.push_str(&visible(&format!("{} {} {}", entry.timestamp, entry.level, entry.message)).replace('\n', "\\n"));
        text.push('\n');
    }
    Ok(text)
}

fn parse(uri: &str) -> Option<Name> {
    let (sandbox, rest) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    let sandbox = sandbox.to_owned();
    if rest == "logs" {
        return Some(Name::Logs { sandbox });
    }
    let path = percent_decode_str(rest.strip_prefix("files/")?).decode_utf8().ok()?;
    Some(Name::File { sandbox, path: format!("/{}", path.trim_start_matches('/')) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let path = "/home/user/a b%20#?.txt".to_owned();
        let uri = format!("{SCHEME}i1/files{}", utf8_percent_encode(&path, ESCAPED));
        assert_eq!(parse(&uri), Some(Name::File { sandbox: "i1".to_owned(), path }));
        assert_eq!(parse("sandbox://current/logs"), Some(Name::Logs { sandbox: "current".to_owned() }));
        for bad in
            ["", "sandbox://", "sandbox://i1", "sandbox://i1/other", "file:///etc/passwd", "sandbox://i1/files/%ff"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
