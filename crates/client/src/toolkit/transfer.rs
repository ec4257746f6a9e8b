//! Transfers files between this machine and the sandbox, as streams of bytes.

use std::path::Path;

use http::Method;
use isopod_guest_client::guest::{Guest, Upload};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::{Toolkit, ToolkitError};
use crate::SandboxId;
use crate::sandbox::Call;

/// The sandbox of a transfer.
#[derive(Deserialize)]
struct Started {
    sandbox_id: SandboxId,
    restarted: bool,
    old_sandbox_id: Option<String>,
}

impl Toolkit {
    /// Copies a local file into the sandbox.
    ///
    /// # Errors
    /// See [`Toolkit::call`]. A file that cannot be read is a result, not an error.
    pub async fn upload_file(&self, local_path: &str, remote_path: &str) -> Result<Value, ToolkitError> {
        let file = match tokio::fs::File::open(local_path).await {
            Ok(file) => file,
            Err(error) => return Ok(Self::failed(format!("could not open {local_path}: {error}"))),
        };
        let size = file.metadata().await.map_err(failed("look at", local_path))?.len();
        let (started, guest) = self.guest().await?;
        if let Err(error) = guest.write_file(remote_path, Upload::reader(file)).await {
            return Ok(Self::failed(format!("File upload failed: {error}")));
        }
        Ok(started.result(format!("Uploaded {size} bytes"), local_path, remote_path, size))
    }

    /// Copies a file of the sandbox to this machine. Creates missing directories.
    ///
    /// # Errors
    /// [`ToolkitError::Local`] if it cannot be written here. A missing file is a result, not an error.
    pub async fn download_file(&self, remote_path: &str, local_path: &str) -> Result<Value, ToolkitError> {
        let (started, guest) = self.guest().await?;
        let mut download = match guest.read_file(remote_path).await {
            Ok(download) => download,
            Err(error) => return Ok(Self::failed(format!("File download failed: {error}"))),
        };
        if let Some(parent) = Path::new(local_path).parent() {
            tokio::fs::create_dir_all(parent).await.map_err(failed("create the directory of", local_path))?;
        }
        let mut file = tokio::fs::File::create(local_path).await.map_err(failed("make", local_path))?;
        let mut size = 0;
        while let Some(piece) = download.next().await? {
            file.write_all(&piece).await.map_err(failed("write", local_path))?;
            size += piece.len() as u64;
        }
        file.flush().await.map_err(failed("write", local_path))?;
        Ok(started.result(format!("Downloaded {size} bytes"), local_path, remote_path, size))
    }

    async fn guest(&self) -> Result<(Started, Guest), ToolkitError> {
        let call = Call::new(Method::POST, self.url("")).once(None);
        let started: Started = self.client.call_within(self.patience, call).await?.parse()?;
        let sandbox = self.client.connect(&started.sandbox_id, None).await?;
        Ok((started, sandbox.guest().clone()))
    }
}

impl Started {
    fn result(&self, message: String, local_path: &str, remote_path: &str, size: u64) -> Value {
        let mut result = json!({
            "success": true,
            "ok": true,
            "message": message,
            "local_path": local_path,
            "remote_path": remote_path,
            "size_bytes": size,
            "sandbox_id": self.sandbox_id,
            "restarted": self.restarted,
        });
        if let Some(old) = &self.old_sandbox_id {
            result["old_sandbox_id"] = json!(old);
        }
        result
    }
}

fn failed(doing: &'static str, path: &str) -> impl FnOnce(std::io::Error) -> ToolkitError {
    let path = path.to_owned();
    move |source| ToolkitError::Local { doing, path, source }
}
