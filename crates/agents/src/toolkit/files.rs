//! Files in the sandbox: `upload_file`, `download_file`, `list_files`, `read_file_content`, `write_file_content`,
//! `create_directory`. Binary contents are preserved.
//!
//! The local side of a transfer is the execution's workspace, by key or by path. No call reads or writes other files of
//! the host. Without a workspace, the bytes are part of the call.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use isopod_files::{Files, Key, Offloaded, blocking, pieces_of};
use isopod_guest_client::Reservation;
use isopod_guest_client::guest::{Guest, StartProcess, Upload};
use serde::Deserialize;
use serde_json::json;

use super::code::{MAX_OUTPUT, run};
use super::errors::ToolError;
use super::sandbox::Held;
use super::tool::{Fields, Toolkit, fields};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UploadArguments {
    local_path: String,
    remote_path: String,
    /// Used instead of a file of the workspace.
    content_base64: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DownloadArguments {
    remote_path: String,
    /// Without it, the result contains the bytes.
    local_path: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    #[serde(default = "home")]
    directory: String,
}

fn home() -> String {
    "/home/user".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathArguments {
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteArguments {
    path: String,
    content: String,
}

/// The maximum size of a file in a result.
const MAX_SHOWN: usize = MAX_OUTPUT;

/// What to upload.
#[derive(Debug)]
pub(super) enum Source {
    Bytes(Bytes),
    File(std::fs::File, u64),
}

impl Toolkit {
    /// Finds what to upload. This comes before there is a sandbox, so that a mistake does not create one.
    pub(super) async fn source_of(&self, arguments: &UploadArguments) -> Result<Source, ToolError> {
        if let Some(content) = &arguments.content_base64 {
            let wrong = |_| ToolError::Arguments("content_base64 is not base64".to_owned());
            return Ok(Source::Bytes(STANDARD.decode(content).map_err(wrong)?.into()));
        }
        let key = self.local_key(&arguments.local_path)?;
        let files = self.files().await?;
        let opened = blocking(move || files.open(&key)).await?;
        Ok(Source::File(opened.file, opened.size))
    }

    pub(super) fn target_of(&self, arguments: &DownloadArguments) -> Result<Option<Key>, ToolError> {
        let Some(path) = &arguments.local_path else { return Ok(None) };
        let key = self.local_key(path)?;
        Ok(Some(Key::parse_new(key.as_str())?))
    }

    pub(super) async fn upload_file(
        &self,
        held: &Held,
        arguments: &UploadArguments,
        source: Source,
    ) -> Result<Fields, ToolError> {
        let guest = &held.inside.guest;
        let size = match source {
            Source::Bytes(bytes) => {
                let size = bytes.len() as u64;
                guest.write_file(&arguments.remote_path, bytes).await?;
                size
            }
            Source::File(file, size) => {
                guest.write_file(&arguments.remote_path, Upload::stream(pieces_of(file))).await?;
                size
            }
        };
        Ok(fields(json!({
            "success": true,
            "message": format!("Uploaded {size} bytes"),
            "local_path": arguments.local_path,
            "remote_path": arguments.remote_path,
            "size_bytes": size,
        })))
    }

    pub(super) async fn download_file(
        &self,
        held: &Held,
        arguments: &DownloadArguments,
        target: Option<Key>,
    ) -> Result<Fields, ToolError> {
        let (size, content) = match target {
            Some(key) => (self.download_to(held, &arguments.remote_path, key).await?, None),
            None => {
                let mut memory = held.memory.reserve();
                let bytes = read_all(&held.inside.guest, &arguments.remote_path, &mut memory).await?;
                (bytes.len() as u64, Some(STANDARD.encode(&bytes)))
            }
        };
        let mut result = json!({
            "success": true,
            "message": format!("Downloaded {size} bytes"),
            "remote_path": arguments.remote_path,
            "local_path": arguments.local_path,
            "size_bytes": size,
        });
        if let Some(content) = content {
            result["content_base64"] = json!(content);
        }
        Ok(fields(result))
    }

    async fn download_to(&self, held: &Held, path: &str, key: Key) -> Result<u64, ToolError> {
        let mut download = held.inside.guest.read_file(path).await?;
        let (files, expected) = (self.files().await?, download.size());
        let mut put = Offloaded::begin(move || files.begin_put(key, None, expected)).await?;
        while let Some(piece) = download.next().await? {
            put = put.write(piece).await?;
        }
        Ok(put.finish().await?)
    }

    /// In the format of `ls -la`.
    pub(super) async fn list_files(&self, held: &Held, arguments: ListArguments) -> Result<Fields, ToolError> {
        let ls = StartProcess::new("ls").args(["-la", "--", &arguments.directory]);
        let listed = run(held, ls).await?;
        if listed["success"] != json!(true) {
            let why = listed["stderr"].as_str().unwrap_or_default().trim();
            return Ok(fields(json!({ "success": false, "error": format!("Failed to list directory: {why}") })));
        }
        let mut result = json!({ "success": true, "directory": arguments.directory, "output": listed["stdout"] });
        if listed["truncated"] == json!(true) {
            result["truncated"] = json!(true);
        }
        Ok(fields(result))
    }

    pub(super) async fn read_file_content(&self, held: &Held, arguments: PathArguments) -> Result<Fields, ToolError> {
        let mut memory = held.memory.reserve();
        let bytes = read_all(&held.inside.guest, &arguments.path, &mut memory).await?;
        let size = bytes.len();
        let mut result = json!({ "success": true, "path": arguments.path, "size_bytes": size });
        match String::from_utf8(bytes) {
            Ok(text) => (result["content"], result["is_text"]) = (json!(text), json!(true)),
            Err(error) => {
                (result["content"], result["is_text"]) = (json!("[Binary file]"), json!(false));
                result["content_base64"] = json!(STANDARD.encode(error.as_bytes()));
            }
        }
        Ok(fields(result))
    }

    pub(super) async fn write_file_content(&self, held: &Held, arguments: WriteArguments) -> Result<Fields, ToolError> {
        let size = arguments.content.len();
        held.inside.guest.write_file(&arguments.path, arguments.content).await?;
        Ok(fields(json!({
            "success": true,
            "message": format!("Wrote {size} bytes"),
            "path": arguments.path,
            "size_bytes": size,
        })))
    }

    pub(super) async fn create_directory(&self, held: &Held, arguments: PathArguments) -> Result<Fields, ToolError> {
        held.inside.guest.make_dir(&arguments.path).await?;
        let message = format!("Created directory: {}", arguments.path);
        Ok(fields(json!({ "success": true, "message": message, "path": arguments.path })))
    }

    async fn files(&self) -> Result<Files, ToolError> {
        let none = "this server has no workspace; send content_base64, or omit local_path to get the bytes";
        let store = self.app.files.as_ref().ok_or_else(|| ToolError::Arguments(none.to_owned()))?;
        Ok(store.files(self.execution.clone()).await?)
    }

    /// Parses a path in the execution's directory, or a key.
    fn local_key(&self, path: &str) -> Result<Key, ToolError> {
        let inside = self.app.workspace.as_ref().and_then(|workspace| {
            let root = workspace.execution_mount(self.execution.as_str()).path;
            Some(path.strip_prefix(&root)?.strip_prefix('/')?.to_owned())
        });
        match inside {
            Some(key) => Ok(Key::parse(&key)?),
            None if path.starts_with('/') => Err(ToolError::Arguments(format!(
                "{path:?} is not in the execution's workspace; other files of the host are not accessible"
            ))),
            None => Ok(Key::parse(path)?),
        }
    }
}

async fn read_all(guest: &Guest, path: &str, memory: &mut Reservation) -> Result<Vec<u8>, ToolError> {
    let mut download = guest.read_file(path).await?;
    let mut all = Vec::new();
    while let Some(piece) = download.next().await? {
        if all.len() + piece.len() > MAX_SHOWN {
            return Err(ToolError::Arguments(format!(
                "the file is larger than {MAX_SHOWN} bytes; download it into the workspace"
            )));
        }
        if !memory.grow(piece.len()) {
            return Err(ToolError::Busy);
        }
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use isopod_guest_client::{ByteStream, Connector, Dial, DialFuture, MemoryBudget, Origin};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::tool::in_time;
    use super::*;

    /// Replies with an endless file: this piece of it after each pause.
    #[derive(Clone, Copy)]
    struct Endless(&'static str, Duration);

    impl Dial for Endless {
        fn dial(&self, _: &Origin) -> DialFuture {
            let (ours, mut theirs) = tokio::io::duplex(64 << 10);
            let Self(piece, pause) = *self;
            tokio::spawn(async move {
                let _ = theirs.read(&mut [0; 4096]).await;
                let mut sent = theirs.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
                while sent.is_ok() {
                    tokio::time::sleep(pause).await;
                    sent = theirs.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await;
                }
            });
            Box::pin(async move { Ok(Box::new(ours) as Box<dyn ByteStream>) })
        }
    }

    async fn read(file: Endless) -> ToolError {
        let guest = Guest::over(Connector::custom(file));
        let mut memory = MemoryBudget::unlimited().reserve();
        in_time(Duration::from_secs(60), read_all(&guest, "/x", &mut memory)).await.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_without_end_is_cut_and_one_that_drips_is_given_up() {
        let large = "0123456789abcdef".repeat(4096).leak();
        let error = read(Endless(large, Duration::ZERO)).await;
        assert!(matches!(&error, ToolError::Arguments(text) if text.contains("larger than")), "{error:?}");
        let error = read(Endless("x", Duration::from_secs(1))).await;
        assert!(matches!(error, ToolError::Late(limit) if limit == Duration::from_secs(90)), "{error:?}");
    }
}
