//! The files of one execution, on an Isopod server with a workspace. Agents on the host and code in sandboxes see the same
//! files under the same paths.
//!
//! The names are those of ROMA's `FileStorage`. A key whose first part is not one of the execution's directories is an
//! artifact, so `put("test.txt", …)` is what [`FileStorage::get_artifacts_path`] of `test.txt` names.
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

/// Notes about a file: a JSON object.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

const METADATA_HEADER: &str = "x-isopod-metadata";

/// Why something was not done to a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The key cannot name a file.
    #[error("the key cannot be used")]
    Key(#[from] KeyError),
    /// The server refused or could not be reached.
    #[error("the server did not do it")]
    Api(#[from] ApiError),
    /// A file of this machine could not be read or removed.
    #[error("could not {doing} {path}")]
    Local {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// What is stored is no text or not the JSON that was expected.
    #[error("{key} does not hold what was expected")]
    Content {
        /// Which file.
        key: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A handle on one execution's files. Clones share their connections.
#[derive(Clone, Debug)]
pub struct FileStorage {
    client: Client,
    execution_id: String,
    root_path: String,
}

impl FileStorage {
    /// Makes the execution's directories, if it is new.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] when the execution is another team's; a server without a workspace answers 501.
    pub async fn open(client: &Client, execution_id: &str) -> Result<Self, StorageError> {
        let path = format!("/api/v1/executions/{}", encode(execution_id));
        let info: StorageInfo = client.call(Call::new(Method::PUT, path)).await?.parse()?;
        Ok(Self { client: client.clone(), execution_id: info.execution_id, root_path: info.root_path })
    }

    /// Which execution.
    pub fn execution_id(&self) -> &str {
        &self.execution_id
    }

    /// Where the files are, on the host and in sandboxes.
    pub fn root_path(&self) -> &str {
        &self.root_path
    }

    /// Where the file of a key is.
    ///
    /// # Errors
    /// When no file can have this key.
    pub fn get_full_path(&self, key: &str) -> Result<String, KeyError> {
        Ok(format!("{}/{}", self.root_path, normalize_key(key)?))
    }

    /// A path below `artifacts`.
    ///
    /// # Errors
    /// When no file can be called so; of its siblings too.
    pub fn get_artifacts_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("artifacts", name)
    }

    /// A path below `temp`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_temp_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("temp", name)
    }

    /// A path below `results`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_results_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("results", name)
    }

    /// A path below `results/plots`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_plots_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("results/plots", name)
    }

    /// A path below `results/reports`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_reports_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("results/reports", name)
    }

    /// A path below `outputs`.
    #[expect(clippy::missing_errors_doc, reason = "see get_artifacts_path")]
    pub fn get_outputs_path(&self, name: &str) -> Result<String, KeyError> {
        self.path_in("outputs", name)
    }

    /// A path below `logs`.
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
