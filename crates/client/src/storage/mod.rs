//! The files of one execution, on an Isopod server with a workspace. Agents on the host and code in sandboxes see the
//! same files under the same paths.
//!
//! The names are those of ROMA's `FileStorage`. A key whose first component is not one of the execution's directories
//! is an artifact, so `put("test.txt", …)` writes the file that [`FileStorage::get_artifacts_path`] of `test.txt`
//! names.
//!
//! ```no_run
//! # async fn example(client: isopod_client::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use isopod_client::FileStorage;
//!
//! let storage = FileStorage::open(&client, "test_e2b_001").await?;
//! storage.put("test.txt", "Hello from host!", None).await?;
//! assert_eq!(storage.get_artifacts_path("test.txt")?, "/opt/sentient/executions/test_e2b_001/artifacts/test.txt");
//! assert_eq!(storage.get_text("test.txt").await?.as_deref(), Some("Hello from host!"));
//! storage.cleanup_execution_temp_files().await?;
//! # Ok(())
//! # }
//! ```

mod get;
mod info;
mod key;
mod list;
mod local;
mod put;
mod transfer;

use http::Method;
use isopod_guest_client::transport::encode;

pub use get::StoredFile;
pub use info::StorageInfo;
pub use key::KeyError;
pub use list::ListedFile;

use crate::sandbox::{ApiError, Call, Client};
use key::normalize_key;

/// The metadata of a file: a JSON object.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

const METADATA_HEADER: &str = "x-isopod-metadata";

/// Why a file operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The key is invalid.
    #[error("the key is invalid")]
    Key(#[from] KeyError),
    /// The server refused or could not be reached.
    #[error("the request to the server failed")]
    Api(#[from] ApiError),
    /// A local file could not be read or removed.
    #[error("could not {doing} {path}")]
    Local {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The content is not text, or not the expected JSON.
    #[error("{key} does not have the expected content")]
    Content {
        /// The file.
        key: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A handle to one execution's files. Clones share their connections.
#[derive(Clone, Debug)]
pub struct FileStorage {
    client: Client,
    execution_id: String,
    root_path: String,
}

impl FileStorage {
    /// Creates the execution's directories, if it is new.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if the execution belongs to another team; a server without a workspace returns 501.
    pub async fn open(client: &Client, execution_id: &str) -> Result<Self, StorageError> {
        let path = format!("/api/v1/executions/{}", encode(execution_id));
        let info: StorageInfo = client.call(Call::new(Method::PUT, path)).await?.parse()?;
        Ok(Self { client: client.clone(), execution_id: info.execution_id, root_path: info.root_path })
    }

    /// The execution.
    pub fn execution_id(&self) -> &str {
        &self.execution_id
    }

    /// The path of the files on the host and in sandboxes.
    pub fn root_path(&self) -> &str {
        &self.root_path
    }

    /// Returns the path of a key's file.
    ///
    /// # Errors
    /// If the key is invalid.
    pub fn get_full_path(&self, key: &str) -> Result<String, KeyError> {
        Ok(format!("{}/{}", self.root_path, normalize_key(key)?))
    }

    /// Returns a path below `artifacts`.
    ///
    /// # Errors
    /// If the name is invalid. The same holds for the similar methods.
    pub fn get_artifacts_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("artifacts", name)
    }

    /// Returns a path below `temp`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_temp_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("temp", name)
    }

    /// Returns a path below `results`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_results_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("results", name)
    }

    /// Returns a path below `results/plots`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_plots_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("results/plots", name)
    }

    /// Returns a path below `results/reports`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_reports_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("results/reports", name)
    }

    /// Returns a path below `outputs`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_outputs_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("outputs", name)
    }

    /// Returns a path below `logs`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_logs_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("logs", name)
    }

    fn path_in(&self, dir: &str, name: &str) -> Result<String, KeyError> {
        Ok(format!("{}/{}", self.root_path, normalize_key(&format!("{dir}/{name}"))?))
    }

    fn url(&self, rest: &str) -> String {
        format!("/api/v1/executions/{}{rest}", encode(&self.execution_id))
    }

    fn file_url(&self, key: &str) -> Result<String, KeyError> {
        let parts: Vec<String> = normalize_key(key)?.split('/').map(encode).collect();
        Ok(self.url(&format!("/files/{}", parts.join("/"))))
    }
}
